"""The command `gradcam`, also as `python -m service`.

The command line is imported when it runs, not before: each process that `gradcam serve` spawns
imports this module, too, and needs nothing of it.
"""

from __future__ import annotations


def main() -> None:
    from service.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
