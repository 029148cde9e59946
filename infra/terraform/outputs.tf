output "environment" {
  description = "What to export before `lyceum run --target v5e-8`: eval \"$(terraform -chdir=infra/terraform output -raw environment)\"."
  value       = join("\n", [for name, value in local.environment : "export ${name}='${value}'"])
}

output "flow_account" {
  description = "E-mail of the account that members may act as."
  value       = google_service_account.flow.email
}

output "code_archive" {
  description = "Where the VM takes its code from: git archive --format=tar.gz HEAD | gcloud storage cp - THIS. Null without a VM."
  value       = var.prefect_vm ? "${google_storage_bucket.code[0].url}/lyceum.tar.gz" : null
}

output "prefect_tunnel" {
  description = "A command that makes the VM's Prefect UI available at http://localhost:4200. Null without a VM."
  value       = var.prefect_vm ? "gcloud compute ssh ${google_compute_instance.prefect[0].name} --project=${var.project} --zone=${var.zones[0]} --tunnel-through-iap -- -N -L 4200:localhost:4200" : null
}
