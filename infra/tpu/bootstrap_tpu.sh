#!/usr/bin/env bash
# The startup script of a TPU VM: from a bare machine to `python -m infra.tpu.host`, the agent that runs the job.
#
# Every host of a slice runs it, as root, at every boot. What it makes lies below $ROOT, so a second run goes on where the first ended. What
# the job is comes from the metadata server (`read_metadata`), everything else from the job's store: the code, and the Python environment if
# a machine before has left one there. A failure is written to the store as the host's last word, and the machine deletes itself if whoever
# asked for it does not.
#
# For stand-ins: LYCEUM_VM_ROOT, LYCEUM_VM_PYTHON (an interpreter that has the environment already), LYCEUM_VM_TPU_API, GCE_METADATA_HOST,
# STORAGE_EMULATOR_HOST.
set -euo pipefail
export LC_ALL=C HOME="${HOME:-/root}"

readonly ROOT=${LYCEUM_VM_ROOT:-/opt/lyceum}
readonly STORAGE=${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}
readonly TPU_API=${LYCEUM_VM_TPU_API:-https://tpu.googleapis.com}
readonly LOG=$ROOT/boot.log
readonly UV_VERSION=0.13.9
readonly NOT_FOUND=44 # exit code of `ask` for what is not there

LYCEUM_HOST=0 LYCEUM_SOURCE="" step="starting" problem="" bucket="" prefix="" payer="" status="" agent="" logging=""
exec 3>/dev/null # the serial console, once everything else goes to the log

say() {
    local line
    line="$(date -u +%FT%TZ) bootstrap: $*"
    echo "$line" >&2
    echo "$line" >&3
}

fail() { # WORDS...: ends the script
    problem=$*
    say "$problem"
    exit 1
}

again() { # COMMAND...: until it succeeds, five times at most. What is not there need not be asked for again.
    local delay result
    for delay in 1 3 9 20 ""; do
        result=0
        "$@" || result=$?
        if ((result == 0 || result == NOT_FOUND)) || [[ -z $delay ]]; then break; fi
        say "$1 failed with exit code $result; once more in $delay s"
        sleep "$delay"
    done
    return "$result"
}

# Requests

ask() { # CURL-ARGUMENTS...: prints the body of the answer, unless they say where it goes
    local answer
    answer=$(curl --silent --show-error --connect-timeout 10 --speed-limit 1 --speed-time 60 --write-out '\n%{http_code}' "$@") || return 1
    case ${answer##*$'\n'} in
    2??) printf '%s' "${answer%$'\n'*}" ;;
    404) return "$NOT_FOUND" ;;
    *)
        printf 'HTTP %s: %.500s\n' "${answer##*$'\n'}" "${answer%$'\n'*}" >&2
        return 1
        ;;
    esac
}

metadata() { # PATH
    ask -H 'Metadata-Flavor: Google' "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/$1"
}

signed() { # CURL-ARGUMENTS...: in the name of the machine's service account. The token is in no list of processes.
    local token
    token=$(metadata instance/service-accounts/default/token) || return 1
    token=$(sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p' <<<"$token")
    ask -H @<(printf 'Authorization: Bearer %s\n' "$token") "$@"
}

store() { # CURL-ARGUMENTS...
    if [[ ${STORAGE_EMULATOR_HOST:-} ]]; then ask "$@"; else signed "$@"; fi
}

quoted() { # the name of an object, as a part of a URL
    local name=$prefix$1
    name=${name//\//%2F}
    printf '%s' "${name//+/%2B}"
}

download() { # NAME [CURL-ARGUMENTS...]
    store "${@:2}" "$STORAGE/storage/v1/b/$bucket/o/$(quoted "$1")?alt=media$payer"
}

upload() { # NAME CURL-ARGUMENTS...
    store -X POST -H 'Expect:' "${@:2}" "$STORAGE/upload/storage/v1/b/$bucket/o?uploadType=media&name=$(quoted "$1")$payer" >/dev/null
}

# What the job is

attribute() { # VARIABLE NAME: one of the metadata that the machine was made with. Who ends without them cannot delete it: their server is waited for.
    local value
    step="reading the metadata attribute $2"
    until value=$(again metadata "instance/attributes/$2"); do
        if (($? == NOT_FOUND)); then return "$NOT_FOUND"; fi
        sleep 60
    done
    export "$1=$value"
}

read_metadata() {
    local endpoints port project
    attribute LYCEUM_STORE lyceum-store
    attribute LYCEUM_JOB lyceum-job
    attribute LYCEUM_HOST agent-worker-number
    [[ $LYCEUM_STORE == gs://?* ]] || fail "the store $LYCEUM_STORE is no gs://bucket/prefix"
    [[ $LYCEUM_JOB == work/*/*/job.json ]] || fail "the job $LYCEUM_JOB is no work/KEY/ATTEMPT/job.json"
    bucket=${LYCEUM_STORE#gs://} bucket=${bucket%%/*}
    prefix=${LYCEUM_STORE#"gs://$bucket"} prefix=${prefix#/} prefix=${prefix:+${prefix%/}/}
    directory=${LYCEUM_JOB%/job.json}
    status=$directory/status.json log=$directory/log.txt
    if ((LYCEUM_HOST > 0)); then status=$directory/hosts/$LYCEUM_HOST.json log=$directory/hosts/$LYCEUM_HOST.log.txt; fi

    attribute LYCEUM_RESOURCE lyceum-resource
    attribute LYCEUM_SILENCE lyceum-silence
    attribute LYCEUM_ENVIRONMENT lyceum-environment
    project=$(sed -n 's/.*"LYCEUM_BILLING_PROJECT" *: *"\([^"]*\)".*/\1/p' <<<"$LYCEUM_ENVIRONMENT")
    payer=${project:+&userProject=$project}
    attribute LYCEUM_SOURCE lyceum-source
    attribute port lyceum-port
    attribute endpoints worker-network-endpoints # x:y:IP,x:y:IP,...
    LYCEUM_HOSTS=$(tr ',' '\n' <<<"$endpoints" | wc -l)
    LYCEUM_COORDINATOR=$(cut -d, -f1 <<<"$endpoints" | cut -d: -f3):$port
    export LYCEUM_HOSTS LYCEUM_COORDINATOR
}

has_ended() { # whether this host's last word is in the store
    local last
    last=$(again download "$status") && grep -qE '"state": *"(succeeded|failed|cancelled|paused)"' <<<"$last"
}

# Code and environment

has_sha256() { # FILE SHA256
    local found
    found=$(sha256sum <"$1") || return 1
    if [[ ${found%% *} == "$2" ]]; then return; fi
    say "$(basename "$1") has the sha256 ${found%% *} instead of $2"
    return 1
}

fetch() { # NAME SHA256 FILE
    download "$1" -o "$3" && has_sha256 "$3" "$2"
}

get_code() {
    local sha packed=$ROOT/tmp/code.tar.gz unpacked=$ROOT/tmp/code
    step="getting the code"
    sha=$(basename "$LYCEUM_SOURCE" .tar.gz)
    code=$ROOT/src/$sha
    if [[ -d $code ]]; then return; fi
    again fetch "$LYCEUM_SOURCE" "$sha" "$packed" || fail "$LYCEUM_STORE/$LYCEUM_SOURCE is missing or damaged. Remove it, and run again."
    rm -rf "$unpacked"
    mkdir -p "$unpacked" "$ROOT/src"
    tar -xzf "$packed" -C "$unpacked" --no-same-owner
    mv "$unpacked" "$code"
}

get_environment() {
    local digest
    step="preparing the Python environment"
    if [[ ${LYCEUM_VM_PYTHON:-} ]]; then
        python=$LYCEUM_VM_PYTHON
        return
    fi
    # An environment is good for what it was asked to hold, on one kind of machine, in one place.
    digest=$({ cat "$code"/environment/* && uname -m && getconf GNU_LIBC_VERSION && echo "$ROOT"; } | sha256sum)
    digest=${digest%% *}
    place=$ROOT/env/$digest python=$ROOT/env/$digest/venv/bin/python
    if [[ -e $place/complete ]] && works; then return; fi
    if unpack_environment "$digest"; then
        say "the environment is one that another machine has left in the store"
        touch "$place/complete"
    else
        say "installing the environment"
        again install_environment
        touch "$place/complete"
        if ((LYCEUM_HOST == 0)); then keep_environment "$digest" & fi
    fi
}

works() {
    (cd "$code" && "$python" -c 'import infra.tpu.host')
}

install_environment() {
    local uv=$ROOT/uv/bin/uv
    export UV_PYTHON_INSTALL_DIR=$place/python UV_CACHE_DIR=${UV_CACHE_DIR:-$ROOT/uv-cache}
    if command -v uv; then
        uv=uv
    elif [[ ! -x $uv ]]; then
        python3 -m pip install --quiet --target "$ROOT/uv" "uv==$UV_VERSION" || return 1
    fi
    rm -rf "$place"
    "$uv" venv --quiet --python "$(<"$code/environment/python")" "$place/venv" &&
        "$uv" pip install --quiet --compile-bytecode --python "$python" \
            -r "$code/environment/requirements.txt" -c "$code/environment/constraints.txt" \
            --overrides "$code/environment/overrides.txt" &&
        works
}

# In the store an environment is env/DIGEST/SHA256.tar.gz, and env/DIGEST.sha256, written last, says which. Whoever can write there decides
# what later machines run; whoever can write the bucket decides what they read anyway. The code itself is pinned by the metadata.

unpack_environment() { # DIGEST
    local sha packed=$ROOT/tmp/environment.tar.gz
    rm -rf "$place"
    sha=$(again download "env/$1.sha256") && again fetch "env/$1/$sha.tar.gz" "$sha" "$packed" &&
        tar -xzf "$packed" -C "$ROOT/env" --no-same-owner && rm "$packed" && works
}

keep_environment() { # DIGEST
    local sha packed=$ROOT/tmp/kept.tar.gz
    # The agent is starting meanwhile and Python leaves bytecode beside its modules: tar's 1 says that a directory changed, and is no failure.
    { nice -n 19 tar -cf - -C "$ROOT/env" --exclude=complete "$1" || (($? == 1)); } | nice -n 19 gzip -1 >"$packed" &&
        sha=$(sha256sum <"$packed") && sha=${sha%% *} &&
        again upload "env/$1/$sha.tar.gz" -T "$packed" && again upload "env/$1.sha256" --data-binary "$sha" &&
        say "the environment was left in the store for other machines"
    rm -f "$packed"
}

# The agent, and the end

run_agent() {
    local result=0
    step="running the agent"
    if [[ -e /dev/accel0 || -e /dev/vfio/0 ]]; then
        echo always >/sys/kernel/mm/transparent_hugepage/enabled # libtpu starts faster
    fi
    export LYCEUM_CACHE=${LYCEUM_CACHE:-$ROOT/cache} LYCEUM_COMPILE_CACHE=$ROOT/jax LYCEUM_BOOT_LOG=$LOG
    export JAX_PLATFORMS=${JAX_PLATFORMS:-tpu,cpu}
    cd "$code"
    say "starting the agent"
    "$python" -m infra.tpu.host &
    agent=$!
    while kill -0 "$agent" 2>/dev/null; do # a signal that is passed on to the agent interrupts the waiting for it
        wait "$agent" || true
    done
    wait "$agent" || result=$? # bash remembers it, also if the agent was gone before anybody waited for it
    return "$result"
}

terminated() {
    if [[ $agent ]]; then kill -TERM "$agent" 2>/dev/null || true; else exit 143; fi
}

ended() { # EXIT-CODE
    set +e
    trap - TERM INT EXIT
    if (($1 == 0)); then exit 0; fi
    if [[ -z $status ]]; then
        say "$step failed, so nobody can be told of it"
        exit "$1"
    fi
    has_ended || report "$1"
    if (($1 < 128)); then sleep "${LYCEUM_SILENCE:-0}"; fi # whoever asked for the machine deletes it, if he lives
    remove_machine
    exit "$1"
}

report() { # EXIT-CODE
    local words lost=false free
    words="host $LYCEUM_HOST: ${problem:-$step failed with exit code $1}"
    if (($1 > 128)); then lost=true; fi
    free=$(df -Pk "$ROOT" 2>/dev/null || df -Pk /)
    if (($(awk 'NR == 2 { print $4 }' <<<"$free") < 65536)) || grep -qsE 'No space left on device|[Qq]uota exceeded' "$LOG"; then
        words+=$'\n'"the disk of $ROOT is full: $(tail -n 1 <<<"$free")"
    fi
    words+=$'\n'"the end of its log:"$'\n'"$(masked | tail -n 20)"
    words=$(tr -cd '\n\t -~' <<<"$words" | sed -E -e 's/[\\"]/\\&/g' -e 's/\t/\\t/g' | awk '{ printf "%s\\n", $0 }')
    if [[ $logging && -z $agent ]]; then again upload_log; fi
    again upload "$status" --data-binary \
        "{\"state\": \"failed\", \"heartbeat\": $(date +%s), \"error\": \"${words%\\n}\", \"exit_code\": 1, \"lost\": $lost}"
}

masked() { # the log, if it was begun, without user names and passwords in URLs
    if [[ $logging ]]; then sed -E 's#://[^/@ ]+@#://***@#g' "$LOG"; fi
}

upload_log() {
    masked | upload "$log" --data-binary @-
}

remove_machine() { # however long that is refused: it is paid for until then, and nobody else may be left to ask
    local result
    say "deleting $LYCEUM_RESOURCE"
    while true; do
        result=0
        again signed -X DELETE "$TPU_API/v2alpha1/$LYCEUM_RESOURCE?force=true" || result=$?
        if ((result == 0 || result == NOT_FOUND)); then break; fi
        sleep 60
    done
}

main() {
    read_metadata
    step="writing to $ROOT"
    mkdir -p "$ROOT/tmp" "$ROOT/env"
    : >"$LOG"
    exec 3>&1 >>"$LOG" 2>&1
    logging=yes
    say "host $LYCEUM_HOST of $LYCEUM_HOSTS, job $LYCEUM_STORE/$LYCEUM_JOB"
    if has_ended; then
        say "the job has ended"
        remove_machine
        return
    fi
    get_code
    get_environment
    run_agent
}

trap 'terminated' TERM INT
trap 'ended $?' EXIT
main
