"""The settings of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import platformdirs
from pydantic import Field

from service.core.errors import ConfigError
from service.core.settings import CoreSettings, Names

FILE: Final = "jobs.sqlite"
"""The database in the folder of jobs."""


class JobSettings(CoreSettings):
    """Where jobs are kept, and how many and how large they can be."""

    jobs: Path | None = Field(
        None,
        description="folder in which jobs and their results are kept; without it, `gradcam/jobs` "
        "in the user's state folder",
    )
    jobs_database: str | None = Field(
        None,
        description="SQLAlchemy URL of a PostgreSQL database, for several replicas that share it "
        "and the folder; without it, SQLite in the folder",
    )
    max_jobs: int = Field(
        100,
        ge=0,
        description="largest number of unfinished jobs; a further job gets a 429. 0: no new jobs, "
        "and nothing of jobs at all if none are stored",
    )
    max_job_items: int = Field(1_000_000, ge=1, description="largest number of images in one job")
    max_job_bytes: int = Field(
        2_000_000_000, ge=1, description="largest body of a job, and largest unpacked archive"
    )
    jobs_bytes: int = Field(
        20_000_000_000,
        ge=1,
        description="largest number of bytes of all jobs and results on the disk; above this limit "
        "new jobs get a 507, and running jobs wait",
    )
    job_retention_seconds: float = Field(
        604_800.0, gt=0, description="how long a job and its results are kept after it has ended"
    )
    inputs: Path | None = Field(
        None, description="folder below which a job may name its images by `path`"
    )
    input_uris: Names = Field(
        (),
        description="patterns of places from which a job may name its images by `uri`, like "
        "`s3://bucket/*`, read through fsspec",
    )

    @property
    def jobs_folder(self) -> Path:
        """The folder in which jobs are kept."""
        return self.jobs or platformdirs.user_state_path("gradcam", False) / "jobs"

    def has_jobs(self) -> bool:
        """Return whether there are jobs, or there may be: those that were stored before are
        processed and can be read also where no new ones are taken."""
        if self.max_jobs or self.jobs_database:
            return True
        try:
            return (self.jobs_folder / FILE).exists()
        except OSError:  # nobody may look into the folder, which the jobs then say
            return True

    def check_replicas(self, count: int) -> None:
        super().check_replicas(count)
        if count > 1 and self.max_jobs and self.jobs is None:
            raise ConfigError(
                f"max_replicas={count}: a job that one replica takes is unknown to the others; "
                "name a folder that all share, jobs=FOLDER, and where they are on several machines "
                "jobs_database=URL; or take no jobs, max_jobs=0"
            )
