locals {
  regions   = distinct([for zone in var.zones : join("-", slice(split("-", zone), 0, 2))])
  continent = { us = "US", europe = "EU", asia = "ASIA" }
  location  = length(local.regions) == 1 ? upper(local.regions[0]) : local.continent[split("-", local.regions[0])[0]]
  bucket    = var.bucket == "" ? "${var.project}-lyceum" : var.bucket
  prefix    = "lyceum" # of the store in its bucket
  tpu_tag   = "lyceum-tpu"
  vm_tag    = "lyceum-prefect"

  # What `lyceum` reads (infra/settings.py, tasks/chat/provider.py), on a laptop and on the VM alike.
  environment = merge(
    {
      LYCEUM_STORE               = "${google_storage_bucket.store.url}/${local.prefix}"
      LYCEUM_ZONES               = join(",", var.zones)
      LYCEUM_TPU_PROJECT         = var.project
      LYCEUM_TPU_NETWORK         = google_compute_network.lyceum.name
      LYCEUM_TPU_SUBNETWORK      = google_compute_subnetwork.tpu[local.regions[0]].name
      LYCEUM_TPU_EXTERNAL_IPS    = tostring(var.external_ips)
      LYCEUM_TPU_SERVICE_ACCOUNT = google_service_account.tpu.email
      LYCEUM_TPU_TAGS            = local.tpu_tag
    },
    length(var.labels) == 0 ? {} : { LYCEUM_TPU_LABELS = join(",", [for key, value in var.labels : "${key}=${value}"]) },
    { for name, secret in google_secret_manager_secret.tpu : "${name}_SECRET" => "projects/${var.project}/secrets/${secret.secret_id}" },
  )
}
