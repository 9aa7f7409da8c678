"""Write an agent's properties with the zone of its node: node_zone.py LABEL PROPERTIES RESULT.

Place: an init container of an agent's pod, where Kubernetes does not copy the node's labels to the pod.
Invariant: a node without the label, or one that cannot be read, does not keep the agent from starting without a zone:
its clients may then read across zones, which costs traffic and loses nothing.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def read_node(name: str) -> dict:
    """The Node object, with the token of this pod's account."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    address = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/nodes/{name}"
    token = (ACCOUNT / "token").read_text(encoding="utf-8").strip()
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=context) as response:
        return json.load(response)


def main() -> None:
    label, properties, result = sys.argv[1:]
    lines = Path(properties).read_text(encoding="utf-8").rstrip("\n")
    try:
        zone = read_node(os.environ["NODE_NAME"])["metadata"].get("labels", {}).get(label)
        print(f"node={os.environ['NODE_NAME']} zone={zone}" if zone else f"no zone: the node has no label {label}")
    except (OSError, urllib.error.URLError) as error:
        zone = None
        print(f"no zone: cannot read the node: {error}")
    Path(result).write_text(f"{lines}\nbroker.rack={zone}\n" if zone else f"{lines}\n", encoding="utf-8")


main()
