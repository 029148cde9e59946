"""Reads secrets on a machine in the cloud from Google Secret Manager, by name, on demand, and
writes them nowhere.

A name (`projects/PROJECT/secrets/NAME`) is not secret and travels with a job. IAM decides who may
read the secret: a TPU VM's account needs roles/secretmanager.secretAccessor on it
(`infra/terraform/secrets.tf`). Other machines use the application default credentials.
"""

import base64
import re
import time

from infra.secrets import learn
from schemas.base import InputError

URL = "https://secretmanager.googleapis.com"
NAME = re.compile(r"projects/[^/\s]+/secrets/[\w-]+(?:/versions/[\w-]+)?")

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ATTEMPTS = 6
FIRST_PAUSE = 1.0  # seconds, doubled after each attempt
_SECONDS = 20.0
_RETRIED = {408, 429, 500, 502, 503, 504}


def read_secret(name: str, variable: str) -> str:
    """The newest version of a secret, or the one in the name. From now on this process masks it in
    all output.

    Args:
        name: `projects/PROJECT/secrets/NAME` or `.../versions/VERSION`.
        variable: the environment variable with the name, for messages.

    Raises:
        InputError: the name is malformed, there is no such secret, this machine may not read it, or
            the service does not answer.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"{variable}={name!r} is no name of a secret. Write projects/PROJECT/secrets/NAME, or"
            " that with /versions/VERSION."
        )
    version = name if "/versions/" in name else f"{name}/versions/latest"
    answer = _get(version, variable)
    try:
        value = base64.b64decode(answer["payload"]["data"], validate=True).decode("ascii").strip()
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{variable}: what Secret Manager has as {version} is no text that could be a key."
        ) from error
    learn(value)
    return value


def _get(version: str, variable: str) -> dict[str, dict[str, str]]:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from requests.exceptions import RequestException

    try:
        session = AuthorizedSession(google.auth.default(scopes=[_SCOPE])[0])
    except DefaultCredentialsError as error:
        hint = "Run `gcloud auth application-default login`, or set the variable of the key itself."
        raise InputError(
            f"{variable}: there are no credentials to read {version} with. {hint}"
        ) from error
    said = ""
    for attempt in range(_ATTEMPTS):
        time.sleep(FIRST_PAUSE * 2 ** (attempt - 1) if attempt else 0.0)
        try:
            answer = session.get(f"{URL}/v1/{version}:access", timeout=_SECONDS)
        except (GoogleAuthError, RequestException) as error:
            said = f"{type(error).__name__}: {error}"
            continue
        if answer.status_code == 200:
            found: dict[str, dict[str, str]] = answer.json()
            return found
        said = f"{answer.status_code} {' '.join(answer.text.split())[:300]}"
        if answer.status_code not in _RETRIED:
            break
    secret = version.partition("/versions/")[0]
    _, project, _, short = secret.split("/")
    raise InputError(
        f"{variable}: {version} cannot be read: {said}. It must exist, with a value (`gcloud"
        f" secrets versions add {short} --data-file=- --project={project}`), and the account of"
        " this machine needs roles/secretmanager.secretAccessor on it; see infra/README.md."
    )
