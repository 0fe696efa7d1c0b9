"""The way of one request through the code: JPEG in, PNG out, one process, warm, the exact path.

Counts what of `cam` and `service` runs in any thread: files, calls (with properties, without
comprehensions and lambdas; a coroutine counts once), hops (calls from one file into another), and
classes with a method that runs.

    python -m bench.way [--hops]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from io import BytesIO
from itertools import count, cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import skimage.data
from PIL import Image
from starlette.testclient import TestClient

from service.app import create_app
from service.models.catalog import EMBEDDED
from service.settings import Settings

ROOT = Path(__file__).parents[1]
MODEL = f"/v1/models/{EMBEDDED.name}"
OWN = tuple(f"{ROOT / name}/" for name in ("cam", "service"))
RESUMABLE = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


class Way:
    """Counts calls while `is_on`, in the threads that start after `threading.setprofile`."""

    def __init__(self) -> None:
        self.is_on = False
        self.forget()

    def forget(self) -> None:
        self.calls: Counter[str] = Counter()
        self.hops: Counter[tuple[str, str, str]] = Counter()
        self.classes: Counter[str] = Counter()
        self._begun: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or not _is_own(code) or code.co_name[0] == "<":
            return
        if code.co_flags & RESUMABLE:
            if frame in self._begun:
                return
            self._begun.add(frame)
        file = str(Path(code.co_filename).relative_to(ROOT))
        self.calls[file] += 1
        caller = frame.f_back
        while caller and not _is_own(caller.f_code):
            caller = caller.f_back
        source = str(Path(caller.f_code.co_filename).relative_to(ROOT)) if caller else "outside"
        if source != file:
            self.hops[source, file, code.co_name] += 1
        if code.co_varnames[:1] == ("self",):
            self.classes[type(frame.f_locals["self"]).__qualname__] += 1


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(OWN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hops", action="store_true", help="print each hop")
    told = parser.parse_args()
    way = Way()
    threading.setprofile(way)
    sys.setprofile(way)
    with (
        TemporaryDirectory() as folder,
        TestClient(
            create_app(Settings(cache=Path(folder), runtime="torch"), (EMBEDDED,)),
            base_url="http://localhost",
        ) as client,
    ):
        while client.get("/readyz").status_code != 200:
            time.sleep(0.2)

        qualities = count(50)  # no photo comes twice: its answer would be remembered

        def ask(name: str) -> None:
            file = BytesIO()
            photo = Image.fromarray(getattr(skimage.data, name)())
            photo.save(file, "JPEG", quality=next(qualities))
            headers = {"Content-Type": "image/jpeg", "Accept": "image/png"}
            answer = client.post(f"{MODEL}:explain", content=file.getvalue(), headers=headers)
            assert answer.status_code == 200, answer.text

        photos = cycle(("chelsea", "coffee"))
        earlier = -1
        while way.calls.total() != earlier:  # until nothing runs beside the request
            earlier = way.calls.total()
            way.forget()
            time.sleep(1)
            way.is_on = True
            ask(next(photos))
            way.is_on = False
    print(
        f"{len(way.calls)} files, {way.calls.total()} calls, {way.hops.total()} hops between "
        f"{len({hop[:2] for hop in way.hops})} pairs of files, {len(way.classes)} classes"
    )
    if told.hops:
        for (before, file, name), number in way.hops.most_common():
            print(number, before, "->", file, name)


if __name__ == "__main__":
    main()
