resource "google_compute_network" "lyceum" {
  name                    = "lyceum"
  auto_create_subnetworks = false

  depends_on = [google_project_service.needed]
}

# One per region, all of one name: the TPU API is told a name, and looks it up in the region of the zone.
resource "google_compute_subnetwork" "tpu" {
  for_each = toset(local.regions)

  name                     = "lyceum"
  region                   = each.key
  network                  = google_compute_network.lyceum.id
  ip_cidr_range            = cidrsubnet("10.64.0.0/12", 8, index(local.regions, each.key))
  private_ip_google_access = true
}

resource "google_compute_firewall" "ssh" {
  name          = "lyceum-ssh"
  network       = google_compute_network.lyceum.id
  direction     = "INGRESS"
  source_ranges = var.ssh_source_ranges
  target_tags   = [local.tpu_tag, local.vm_tag]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

# jax.distributed and the TPU runtime choose ports on every host of a slice.
resource "google_compute_firewall" "hosts" {
  name          = "lyceum-hosts"
  network       = google_compute_network.lyceum.id
  direction     = "INGRESS"
  source_ranges = [for subnetwork in google_compute_subnetwork.tpu : subnetwork.ip_cidr_range]
  target_tags   = [local.tpu_tag]

  allow {
    protocol = "tcp"
  }

  allow {
    protocol = "icmp"
  }
}

resource "google_compute_router" "nat" {
  for_each = var.external_ips ? toset([]) : toset(local.regions)

  name    = "lyceum"
  region  = each.key
  network = google_compute_network.lyceum.id
}

resource "google_compute_router_nat" "nat" {
  for_each = google_compute_router.nat

  name                               = "lyceum"
  region                             = each.value.region
  router                             = each.value.name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}
