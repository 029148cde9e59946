# Empty: values are added with `gcloud secrets versions add`, so that they never pass through Terraform's state. Those of the flow only its
# account reads. A TPU VM, which runs what models write, reads those that are named for it: keys of endpoints that a stage there asks, such as
# the judge of a GRPO stage. Teachers run beside the flow and need none.

resource "google_secret_manager_secret" "flow" {
  for_each = var.prefect_vm ? var.secrets : toset([])

  secret_id = "lyceum-${each.key}"

  replication {
    auto {}
  }

  depends_on = [google_project_service.needed]
}

resource "google_secret_manager_secret_iam_member" "flow" {
  for_each = google_secret_manager_secret.flow

  project   = var.project
  secret_id = each.value.secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.flow.member
}

resource "google_secret_manager_secret" "tpu" {
  for_each = var.tpu_secrets

  secret_id = "lyceum-tpu-${each.key}"

  replication {
    auto {}
  }

  depends_on = [google_project_service.needed]
}

resource "google_secret_manager_secret_iam_member" "tpu" {
  for_each = google_secret_manager_secret.tpu

  project   = var.project
  secret_id = each.value.secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.tpu.member
}
