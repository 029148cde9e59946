# Empty: values are added with `gcloud secrets versions add`, so that they never pass through Terraform's state. Only the flow's account reads
# them. A TPU VM has none: teachers that need a key run beside the flow (LYCEUM_LOCAL_KINDS).

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
