"""Models whose images need more memory than there is."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from cam import ClassTarget, Question, explain_batch
from service.core.errors import ConfigError
from service.loading import memory
from service.loading.memory import Activations, activations, fitted, free_bytes
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from tests.zoo.parts import Net

CPU = torch.device("cpu")


def entry(**given: object) -> ModelEntry:
    plain = {"name": "m", "source": "factory:tests.zoo.factories:tiny", "weights": "none"}
    return ModelEntry.model_validate({**plain, "input_size": 8, **given})


@pytest.mark.slow
def test_what_an_image_takes_grows_with_its_pixels_and_nothing_is_computed() -> None:
    module = timm.create_model("tf_efficientnet_lite0").eval().requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    small = activations(module, (1, 3, 512, 512), torch.float32)
    large = activations(module, (1, 3, 4096, 4096), torch.float32)
    assert large.examination == pytest.approx(64 * small.examination, rel=0.02)
    assert large.image == pytest.approx(64 * small.image, rel=0.02)
    assert large.examination > 100e9
    assert all(value.device == CPU for value in module.state_dict().values())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    question = Question((ClassTarget(),), "gradcam", ("bn2",))
    assert len(explain_batch(module, torch.randn(1, 3, 64, 64), [question])) == 1
    half = activations(module.half(), (1, 3, 512, 512), torch.float16)
    assert half.examination == pytest.approx(small.examination / 2, rel=0.02)


def stubborn(x: torch.Tensor) -> torch.Tensor:
    """Stops where it looks at values."""
    doubled = x + x
    return doubled if doubled.sum() > 0 else x


class Unique(Net):
    def __deepcopy__(self, memo: object) -> Unique:
        raise TypeError("there is only one")


def test_of_a_model_that_stops_what_it_took_until_then_counts() -> None:
    stopped = activations(Net(stubborn), (1, 3, 100, 100), torch.float32)
    assert stopped.examination >= 3 * 100 * 100 * 4
    assert activations(Unique(stubborn), (1, 3, 100, 100), torch.float32) == Activations(0, 0)


def test_a_model_without_memory_for_one_image_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 8_100_000_000)
    large = entry(source="embedded:efficientnet-lite0", input_size=4096)
    words = (
        r"model 'm': key 'input_size': the model needs about 1[23]\d\.\d GB for one image of "
        r"4096 × 4096; 8\.1 GB are free on the cpu"
    )
    with pytest.raises(ConfigError, match=words):
        load(large)


def test_batches_are_as_large_as_the_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    need = activations(load(entry()).module, (1, 3, 8, 8), torch.float32)
    most = max(need.examination, 5 * need.image + 1)
    monkeypatch.setattr(memory, "free_bytes", lambda device: most)
    assert load(entry()).max_batch == most // need.image < entry().max_batch
    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    assert load(entry()).max_batch == entry().max_batch


def test_a_model_that_is_known_needs_no_memory_for_its_examination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 100)
    need = Activations(examination=1000, image=20)
    assert fitted(entry(), need, (8, 8), CPU, examined=True).max_batch == 5
    with pytest.raises(ConfigError, match="8 × 8"):
        fitted(entry(), need, (8, 8), CPU)


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    8000 kB\n"}
V2, V1 = "sys/fs/cgroup/", "sys/fs/cgroup/memory/"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        (MEMINFO, 8_192_000),
        (  # a limit that is not set, below one that is
            MEMINFO
            | {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}a/b/memory.max": "max\n",
                f"{V2}a/memory.max": "5000000\n",
                f"{V2}a/memory.current": "4000000\n",
                f"{V2}a/memory.stat": "anon 1\ninactive_file 500000\n",
            },
            1_500_000,
        ),
        (  # in a container, whose path is not there
            MEMINFO
            | {
                "proc/self/cgroup": "3:cpu:/docker/x\n2:memory:/docker/x\n",
                f"{V1}memory.limit_in_bytes": "9223372036854771712\n",
                f"{V1}memory.usage_in_bytes": "7\n",
                f"{V1}memory.stat": "total_inactive_file 0\n",
            },
            8_192_000,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu,memory:/\n",
                f"{V1}memory.limit_in_bytes": "1000\n",
                f"{V1}memory.usage_in_bytes": "1200\n",
                f"{V1}memory.stat": "inactive_file 900\ntotal_inactive_file 100\n",
            },
            0,
        ),
    ],
)
def test_the_free_memory_is_what_the_system_and_the_control_groups_leave(
    tmp_path: Path, files: dict[str, str], free: int | None
) -> None:
    write(tmp_path, files)
    assert free_bytes(CPU, tmp_path) == free
    assert free_bytes(torch.device("meta"), tmp_path) is None
