#!/bin/bash
# Startup script of the VM that runs `lyceum serve` (prefect.tf). Root runs it at every boot: it takes the newest code, the settings and the
# secrets, and starts the service. `sudo journalctl -u google-startup-scripts` has what it says, `-u lyceum` what the service says.
#
# Prefect's API knows one key and no users, so it listens on 127.0.0.1 only, and is reached through SSH.
set -euo pipefail

home=${LYCEUM_VM_ROOT:-/opt/lyceum}

attribute() {
  curl --silent --show-error --fail --retry 5 --header 'Metadata-Flavor: Google' \
    "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/$1"
}

# One variable of the environment, quoted as systemd reads it.
variable() {
  printf '%s="%s"\n' "$1" "$(sed 's/[\\"]/\\&/g' <<<"$2")"
}

# The newest version of a secret; fails where there is none yet, or it was disabled or destroyed. New permissions need a minute to come into
# force.
secret() {
  until gcloud secrets versions access latest --secret="lyceum-$1" 2>"$home/error"; do
    if grep --quiet --extended-regexp 'NOT_FOUND|FAILED_PRECONDITION' "$home/error"; then return 1; fi
    cat "$home/error" >&2
    sleep 15
  done
}

mkdir -p "$home"
id lyceum &>/dev/null || useradd --system --home-dir "$home/home" --create-home lyceum

install_uv() {
  apt-get update && apt-get install --yes python3-venv && python3 -m venv "$home/uv" && "$home/uv/bin/pip" install uv
}

# The image's own upgrades hold apt's lock in the minutes after the first boot.
until [ -x "$home/uv/bin/uv" ] || install_uv; do
  sleep 15
done

code=$(attribute lyceum-code)
until gcloud storage cp "$code" "$home/code.tar.gz"; do
  echo "waiting for $code"
  sleep 15
done
rm -rf "$home/new"
mkdir "$home/new"
tar --extract --gzip --no-same-owner --file "$home/code.tar.gz" --directory "$home/new"
[ ! -d "$home/code/.venv" ] || mv "$home/code/.venv" "$home/new/.venv"
rm -rf "$home/code"
mv "$home/new" "$home/code"
chown --recursive lyceum: "$home/code"
runuser --user lyceum -- env HOME="$home/home" "$home/uv/bin/uv" sync --no-dev --directory "$home/code"

umask 077
{
  attribute lyceum-environment | while IFS='=' read -r name value || [ -n "$name" ]; do variable "$name" "$value"; done
  for name in $(attribute lyceum-secrets); do
    if value=$(secret "$name"); then variable "$name" "$value"; else echo "secret lyceum-$name has no value yet" >&2; fi
  done
} >"$home/environment"

cat >"$home/lyceum.service" <<UNIT
[Unit]
Description=Lyceum: Prefect's server, its UI and the process that runs flows
After=network-online.target
Wants=network-online.target

[Service]
User=lyceum
WorkingDirectory=$home/code
EnvironmentFile=$home/environment
ExecStart=$home/code/.venv/bin/lyceum serve
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
UNIT
chmod 644 "$home/lyceum.service"
systemctl enable "$home/lyceum.service"
systemctl restart lyceum.service
