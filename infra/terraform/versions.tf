terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 7.0" # arguments compared with those of 7.45 (August 2026)
    }
  }
}

provider "google" {
  project        = var.project
  default_labels = var.labels
}
