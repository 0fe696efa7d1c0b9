"""`python -m service` is `gradcam`."""

from service.cli.main import main

if __name__ == "__main__":
    main()
