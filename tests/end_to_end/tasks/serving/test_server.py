"""A connection to an endpoint outlives a pause of its client, which would send the next request
into a connection that is being closed."""

import http.client
import time
from urllib.parse import urlsplit

from tasks.models.loading import LoadedModel
from tests.tasks.sampling import test_slots
from tests.tasks.serving.place import place

loaded = test_slots.loaded


def test_a_connection_stays_open_longer_than_clients_keep_theirs(loaded: LoadedModel) -> None:
    """httpx gives a connection up after 5 s: our server must not before."""
    with place(loaded) as found:
        client = http.client.HTTPConnection(urlsplit(found.url).netloc)
        client.connect()
        first = client.sock
        for pause in (0.0, 7.0):
            time.sleep(pause)
            client.request("GET", "/v1/models")
            assert client.getresponse().read()
        assert client.sock is first
        client.close()
