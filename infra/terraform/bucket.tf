# Every commit is one create-only object, so nothing rests on versions: they are off. What is deleted or replaced by mistake is restored from
# soft delete.
resource "google_storage_bucket" "store" {
  name                        = local.bucket
  location                    = local.location
  storage_class               = "STANDARD" # everything is read again, and checkpoints do not live for a month
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  versioning {
    enabled = false
  }

  soft_delete_policy {
    retention_duration_seconds = var.soft_delete_days * 24 * 60 * 60
  }

  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }

  # What is shipped to machines: code, installed environments, files of `--data`.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age            = var.shipped_days
      matches_prefix = [for shipped in ["src/", "env/", "data/", "models/", "compiled/"] : "${local.prefix}/${shipped}"]
    }
  }

  # None, as long as nobody turns versioning on.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      days_since_noncurrent_time = 7
    }
  }

  depends_on = [google_project_service.needed]
}
