resource "google_project_service" "needed" {
  for_each = toset([
    "compute.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com", # members act as the account of the flow
    "iap.googleapis.com",            # SSH
    "logging.googleapis.com",
    "secretmanager.googleapis.com",
    "storage.googleapis.com",
    "tpu.googleapis.com",
  ])

  service            = each.key
  disable_on_destroy = false # others may use them
}
