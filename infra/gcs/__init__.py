"""Cloud Storage: the only importer of google.cloud.storage."""
