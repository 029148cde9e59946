# Two identities and no keys: VMs get tokens from their metadata server, people act as the flow's account or use their own.

resource "google_service_account" "tpu" {
  account_id   = "lyceum-tpu"
  display_name = "Lyceum: TPU VMs"

  depends_on = [google_project_service.needed]
}

resource "google_service_account" "flow" {
  account_id   = "lyceum-flow"
  display_name = "Lyceum: the process that runs flows"

  depends_on = [google_project_service.needed]
}

# Cloud TPU has no permissions of queued resources: their methods ask for those of nodes. Nor do IAM conditions know its resources, so these
# hold for every TPU of the project; a project of its own keeps others' out of reach.

resource "google_project_iam_custom_role" "tpu" {
  role_id     = "lyceumTpu"
  title       = "Lyceum: TPU VMs"
  description = "A VM looks at itself, and deletes itself when nobody else does."
  permissions = ["tpu.nodes.delete", "tpu.nodes.get"]

  depends_on = [google_project_service.needed]
}

resource "google_project_iam_custom_role" "flow" {
  role_id     = "lyceumFlow"
  title       = "Lyceum: flows"
  description = "Ask for TPUs, look at them, delete them."
  permissions = ["tpu.nodes.create", "tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list"]

  depends_on = [google_project_service.needed]
}

resource "google_project_iam_member" "tpu" {
  for_each = {
    tpus = google_project_iam_custom_role.tpu.id
    logs = "roles/logging.logWriter" # of the VM's own agents; a job's log goes to the bucket
  }

  project = var.project
  role    = each.value
  member  = google_service_account.tpu.member
}

resource "google_project_iam_member" "flow" {
  project = var.project
  role    = google_project_iam_custom_role.flow.id
  member  = google_service_account.flow.member
}

# A TPU VM runs as this account, and whoever asks for one must be allowed to use it.
resource "google_service_account_iam_member" "flow_uses_tpu" {
  service_account_id = google_service_account.tpu.name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.flow.member
}

resource "google_service_account_iam_member" "impersonation" {
  for_each = var.members

  service_account_id = google_service_account.flow.name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = each.key
}

# Create, read, list, replace and delete objects: leases and checkpoints are replaced and deleted.
resource "google_storage_bucket_iam_member" "objects" {
  for_each = {
    tpu  = google_service_account.tpu.member
    flow = google_service_account.flow.member
  }

  bucket = google_storage_bucket.store.name
  role   = "roles/storage.objectUser"
  member = each.value
}

# The flow looks up where the bucket lies, and refuses zones that are far away.
resource "google_storage_bucket_iam_member" "location" {
  bucket = google_storage_bucket.store.name
  role   = "roles/storage.legacyBucketReader"
  member = google_service_account.flow.member
}
