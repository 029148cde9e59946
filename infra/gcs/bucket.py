"""A prefix of a Cloud Storage bucket as a place for a store (`infra.store.objects`): its objects,
and whole trees of them."""

from collections.abc import Collection, Sequence
from pathlib import Path

from infra.gcs.bucket_objects import BucketObjects
from infra.gcs.download import Receiver
from infra.gcs.upload import send_tree
from infra.store.objects import checked_name
from schemas.artifact import FileEntry


class Bucket(BucketObjects):
    """A place below `gs://bucket/prefix`; see BucketObjects."""

    def put_tree(self, directory: Path, name: str, entries: Sequence[FileEntry]) -> None:
        """See Objects. The service compares every file with the crc32c of its entry.

        Raises:
            Damaged: a file of the directory is no longer what its entry says.
            InputError: another file lies in the place of one of these.
        """
        send_tree(self, directory, name, entries)

    def get_tree(
        self, name: str, entries: Sequence[FileEntry], wanted: Collection[str] | None = None
    ) -> Path:
        """See Objects. The directory is a copy in this machine's cache; every file of it that is
        wanted is read and compared."""
        files, parts = self.cache / "trees" / checked_name(name), self.cache / "parts" / name
        return Receiver(self, name, files, parts).receive(
            [entry for entry in entries if wanted is None or entry.path in wanted]
        )
