variable "project" {
  description = "Id of an existing Google Cloud project with billing enabled."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "A project id has 6 to 30 lower-case letters, digits and dashes, e.g. my-project-123; not the project's name or number."
  }
}

variable "zones" {
  description = "Zones in which TPUs are asked for, the preferred one first. In one region the bucket lies there; in several of one continent it lies in that continent's multi-region (US, EU, ASIA), which costs more."
  type        = list(string)
  default     = ["us-central1-a"]

  validation {
    condition     = length(var.zones) > 0 && alltrue([for zone in var.zones : can(regex("^[a-z]+-[a-z]+[0-9]+-(ai[0-9]+)?[a-z]$", zone))])
    error_message = "A zone is a region and a letter, e.g. us-central1-a; at least one is needed."
  }

  validation {
    condition = length(distinct([for zone in var.zones : join("-", slice(split("-", zone), 0, 2))])) == 1 || (
      length(distinct([for zone in var.zones : split("-", zone)[0]])) == 1 && contains(["us", "europe", "asia"], try(split("-", var.zones[0])[0], ""))
    )
    error_message = "All zones must lie in one region, or in several of one continent that has a multi-region: us, europe or asia."
  }
}

variable "bucket" {
  description = "Name of the bucket that is made for the store; names are shared by everybody in Google Cloud. Empty for PROJECT-lyceum."
  type        = string
  default     = ""

  validation {
    condition     = var.bucket == "" || can(regex("^[a-z0-9][a-z0-9_-]{1,56}[a-z0-9]$", var.bucket))
    error_message = "A bucket's name here has 3 to 58 lower-case letters, digits, dashes and underscores, with a letter or digit at both ends."
  }
}

variable "shipped_days" {
  description = "Days after which code, environments and data files that were shipped to machines are deleted; they are shipped again when missing. More than a run can take."
  type        = number
  default     = 30

  validation {
    condition     = var.shipped_days >= 7 && floor(var.shipped_days) == var.shipped_days
    error_message = "At least 7 whole days: a run needs what it shipped until it ends."
  }
}

variable "soft_delete_days" {
  description = "Days for which deleted and replaced objects can be restored; they are paid for meanwhile, replaced checkpoints too. 0 for none."
  type        = number
  default     = 7

  validation {
    condition     = var.soft_delete_days == 0 || (var.soft_delete_days >= 7 && var.soft_delete_days <= 90)
    error_message = "Cloud Storage keeps deleted objects for 7 to 90 days, or not at all: 0."
  }
}

variable "external_ips" {
  description = "VMs get public addresses, which nobody can connect to from outside. Without, Cloud NAT is set up, which is paid for by the hour and by the byte."
  type        = bool
  default     = true
}

variable "ssh_source_ranges" {
  description = "Who may reach port 22 of the VMs. The default is Google's Identity-Aware Proxy, which lets in whom IAM allows."
  type        = list(string)
  default     = ["35.235.240.0/20"]

  validation {
    condition     = alltrue([for range in var.ssh_source_ranges : can(cidrhost(range, 0)) && try(tonumber(split("/", range)[1]) >= 16, false)])
    error_message = "Address ranges such as 35.235.240.0/20, none wider than /16: SSH is not opened to the world."
  }
}

variable "members" {
  description = "Who may act as the account of the flow, e.g. [\"user:me@example.com\", \"group:ml@example.com\"]. Nobody but the project's administrators by default."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.members : can(regex("^(user|group|serviceAccount|principal|principalSet):.+$", member))])
    error_message = "A member is written user:ADDRESS, group:ADDRESS, serviceAccount:ADDRESS, principal:... or principalSet:...; allUsers and domains are not taken."
  }
}

variable "labels" {
  description = "Labels of everything that is made, TPUs included, e.g. { team = \"nlp\" }."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key, value in var.labels : can(regex("^[a-z][a-z0-9_-]{0,62}=[a-z0-9_-]{0,63}$", "${key}=${value}"))])
    error_message = "Labels have lower-case letters, digits, dashes and underscores only, and keys begin with a letter."
  }
}

variable "prefect_vm" {
  description = "Make a small VM that runs `lyceum serve`: Prefect's server, its UI and the process that runs flows."
  type        = bool
  default     = false
}

variable "prefect_machine_type" {
  description = "Machine type of that VM; a larger one where stages run on it (LYCEUM_LOCAL_KINDS)."
  type        = string
  default     = "e2-medium"
}

variable "secrets" {
  description = "Environment variables of `lyceum serve` on that VM whose values are kept in Secret Manager, as lyceum-NAME. They are made empty, and values are added with gcloud; one without a value is not set. With the default ones the key that Prefect's API asks for stays the same."
  type        = set(string)
  default     = ["PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"]

  validation {
    condition     = alltrue([for name in var.secrets : can(regex("^[A-Z][A-Z0-9_]*$", name))])
    error_message = "Names of environment variables, e.g. HF_TOKEN: upper-case letters, digits and underscores. Their values do not belong here."
  }
}

variable "tpu_secrets" {
  description = "Keys of endpoints that TPU VMs may read from Secret Manager, by the environment variables that hold them elsewhere, e.g. [\"OPENAI_API_KEY\"]. They are made empty, as lyceum-tpu-NAME, and values are added with gcloud."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for name in var.tpu_secrets : can(regex("^[A-Z][A-Z0-9_]*_API_KEY$", name))])
    error_message = "Names of environment variables that end in _API_KEY, e.g. OPENAI_API_KEY. Their values do not belong here."
  }
}
