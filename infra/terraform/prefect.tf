# The code of the VM lies in a bucket of its own, which the flow's account can only read: a TPU VM, which runs what models write, can replace
# any object of the store, and must not choose what runs as the account that asks for TPUs.

resource "google_storage_bucket" "code" {
  count = var.prefect_vm ? 1 : 0

  name                        = "${local.bucket}-code"
  location                    = local.location
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = true # one archive, made from the repository at any time

  depends_on = [google_project_service.needed]
}

resource "google_storage_bucket_iam_member" "code" {
  count = var.prefect_vm ? 1 : 0

  bucket = google_storage_bucket.code[0].name
  role   = "roles/storage.objectViewer"
  member = google_service_account.flow.member
}

resource "google_compute_instance" "prefect" {
  count = var.prefect_vm ? 1 : 0

  name                      = "lyceum-prefect"
  zone                      = var.zones[0]
  machine_type              = var.prefect_machine_type
  tags                      = [local.vm_tag]
  allow_stopping_for_update = true

  boot_disk {
    initialize_params {
      image = "debian-cloud/debian-12"
      size  = 30 # GB; the environment takes 3, the rest is for copies of artifacts and Prefect's database
    }
  }

  network_interface {
    subnetwork = google_compute_subnetwork.tpu[local.regions[0]].id

    dynamic "access_config" {
      for_each = var.external_ips ? [1] : []
      content {}
    }
  }

  service_account {
    email  = google_service_account.flow.email
    scopes = ["cloud-platform"]
  }

  shielded_instance_config {
    enable_secure_boot = true
  }

  metadata = {
    enable-oslogin     = "TRUE"
    startup-script     = file("${path.module}/prefect_vm.sh")
    lyceum-code        = "${google_storage_bucket.code[0].url}/lyceum.tar.gz"
    lyceum-environment = join("\n", [for name, value in local.environment : "${name}=${value}"])
    lyceum-secrets     = join(" ", keys(google_secret_manager_secret.flow))
  }

  lifecycle {
    ignore_changes = [boot_disk[0].initialize_params[0].image] # Prefect's database is on that disk
  }

  depends_on = [
    google_project_iam_member.flow,
    google_secret_manager_secret_iam_member.flow,
    google_storage_bucket_iam_member.code,
    google_storage_bucket_iam_member.objects,
  ]
}
