#!/usr/bin/env python3
"""Runs the rendered chart on this machine, with packaging/kubernetes.py instead of Kubernetes:

    packaging/test-chart.py CHART HELM DECODE KVORUM [clear|zones|tls|all]

in mount, network and process namespaces of its own, as root (packaging/test.sh chart does that).
CHART is the packed chart or its folder, DECODE the program of packaging/chart/test, KVORUM the
server. `busybox` must be statically linked.

  clear   three nodes without TLS: installed, written, read
  zones   five nodes in three zones, three of them founders
  tls     TLS, tokens required everywhere, and clients that write and read all the time: install 3,
          grow to 5, lose two volumes, drain to 3, grow onto an old claim, renew the certificate,
          replace the cluster's secret, roll an upgrade, scale to 1 and to 0 and back. No request
          fails twice; no acknowledged write is lost"""

import collections
import http.client
import json
import os
import pathlib
import random
import re
import secrets
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kubernetes import LIBRARIES, Cluster, run, say, until  # noqa: E402

CHART, HELM, DECODE, KVORUM = sys.argv[1:5]
NAMESPACE, DOMAIN, NAME = "db", "cluster.local", "kvorum"
TOKEN = ["--token-file", "/etc/kvorum/secret/admin-token"]
# Deadline of a client's request, in seconds: a lost pod does not answer.
TIMEOUT = 2
# Deadline of a rollout, a change of members or a rebuild with this test's data, in seconds.
DEADLINE = 60
# Values for the test: waits shorter than the defaults, and memory that fits the machine.
SHORT = {"minReadySeconds": 3, "preStopSeconds": 2, "memory": "64MiB"}


def fail(*words):
    raise SystemExit("FAILED: " + " ".join(str(word) for word in words))


class Release:
    """Helm without an API server: renders, runs hooks, applies."""

    def __init__(self, cluster, values):
        self.cluster, self.values, self.revision = cluster, dict(values), 0

    def template(self, *flags):
        file = self.cluster.place / "values.json"
        file.write_text(json.dumps(self.values))
        return subprocess.run(
            [HELM, "template", NAME, CHART, "--namespace", NAMESPACE, "--kube-version", "1.30.0",
             "--values", str(file), *flags], text=True, capture_output=True, check=False)

    def objects(self, *flags):
        rendered = self.template(*flags)
        if rendered.returncode != 0:
            fail("helm template:", rendered.stderr)
        return json.loads(run(DECODE, "-json", input=rendered.stdout, text=True,
                              stdout=subprocess.PIPE).stdout)

    def hooks(self, objects, when):
        for found in objects:
            if when not in hook_of(found).split(","):
                continue
            begun = time.monotonic()
            done, said = self.cluster.job(found)
            say(f"hook {found['metadata']['name']}: {'done' if done else 'FAILED'}, "
                f"{time.monotonic() - begun:.1f} s")
            if not done:
                fail("a hook:", said)

    def install(self):
        objects = self.objects()
        self.cluster.apply([found for found in objects if not hook_of(found)])
        self.hooks(objects, "post-install")

    def upgrade(self, before_hooks=lambda: None, **values):
        self.values |= values
        objects = self.objects("--is-upgrade")
        self.hooks(objects, "pre-upgrade")
        self.cluster.apply([found for found in objects if not hook_of(found)])
        before_hooks()
        self.hooks(objects, "post-upgrade")

    def is_refused(self, words, **values):
        kept, self.values = self.values, self.values | values
        rendered = self.template("--is-upgrade")
        self.values = kept
        if rendered.returncode == 0 or words not in rendered.stderr:
            fail(f"{values} is not refused with {words!r}:", rendered.stderr)
        say(f"{values}: refused")


def hook_of(found):
    return found["metadata"].get("annotations", {}).get("helm.sh/hook", "")


class Clients:
    """Clients that write and read, each its own keys, and retry a failure once at another node."""

    def __init__(self, cluster, tls, token, threads=3):
        self.cluster, self.tls, self.token = cluster, tls, token
        self.stopped, self.step = threading.Event(), "start"
        self.written = [{} for _ in range(threads)]
        self.requests, self.retried = collections.Counter(), collections.Counter()
        self.failed = []
        self.threads = [threading.Thread(target=self.work, args=(number,), daemon=True)
                        for number in range(threads)]

    def start(self):
        until("a node has its place in the service", 10, self.cluster.endpoints)
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join(30)

    def connect(self, address):
        if self.tls is None:
            return http.client.HTTPConnection(address, 8080, timeout=TIMEOUT)
        return ServiceConnection(address, 8080, timeout=TIMEOUT, context=self.tls)

    def attempt(self, kept, name, address, method, key, value):
        connection = kept.pop(address, None) or self.connect(address)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request(method, f"/v0/entity?id={key}", value, headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return False, f"{name}: {type(error).__name__}"
        kept[address] = connection
        if method == "GET" and answer.status == 200:
            return True, body
        if method == "PUT" and answer.status in (200, 201, 202, 204):
            return True, value
        return False, f"{name}: {answer.status} {body[:100]!r}"

    def request(self, kept, method, key, value=None):
        """Sends a request, with one retry at another node."""
        said, tried = [], None
        for _ in range(2):
            nodes = self.cluster.endpoints()
            nodes = [node for node in nodes if node[0] != tried] or nodes
            if not nodes:
                said.append("no node is ready")
                break
            tried, address = random.choice(nodes)
            done, got = self.attempt(kept, tried, address, method, key, value)
            self.requests[self.step] += 1
            if done:
                return got
            said.append(got)
            self.retried[self.step] += 1
            time.sleep(0.1)
        self.failed.append((self.step, method, key, said))
        return None

    def work(self, number):
        kept, written = {}, self.written[number]
        while not self.stopped.is_set():
            # Half of the writes have new keys.
            at = random.randrange(max(1, 2 * len(written)))
            key, value = f"load/{number}/{min(at, len(written))}", secrets.token_hex(40).encode()
            if self.request(kept, "PUT", key, value) is None:
                # The write may have taken effect, or not.
                written.pop(key, None)
            else:
                written[key] = value
            for read in random.sample(list(written), min(1, len(written))):
                got = self.request(kept, "GET", read)
                if got is not None and got != written[read]:
                    self.failed.append((self.step, read, "an old value is read"))
            time.sleep(0.02)

    def check(self):
        """Checks that every acknowledged write can be read."""
        until("all nodes have their places in the service", 10, lambda: len(
            self.cluster.endpoints()) == self.cluster.replicas)
        count, kept = 0, {}
        for written in self.written:
            for key, value in written.items():
                got = self.request(kept, "GET", key)
                if got != value:
                    fail(f"{key} is lost: {got!r} instead of {value!r}:", self.failed[-1:])
                count += 1
        say(f"{count} values are there")


class ServiceConnection(http.client.HTTPSConnection):
    """Connects to a pod, by the name of the service."""

    def connect(self):
        http.client.HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(
            self.sock, server_hostname=f"{NAME}.{NAMESPACE}.svc.{DOMAIN}")


# Accepts any certificate, as kubelet does.
ANY_CERTIFICATE = ssl.create_default_context()
ANY_CERTIFICATE.check_hostname, ANY_CERTIFICATE.verify_mode = False, ssl.CERT_NONE


def probe(address, spec):
    kinds = {"HTTP": http.client.HTTPConnection, "HTTPS": http.client.HTTPSConnection}
    asked = spec["httpGet"]
    more = {"context": ANY_CERTIFICATE} if asked["scheme"] == "HTTPS" else {}
    connection = kinds[asked["scheme"]](address, 8080, timeout=spec["timeoutSeconds"], **more)
    try:
        connection.request("GET", asked["path"])
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def images():
    dynamic = b"INTERP" in run("readelf", "-l", KVORUM, stdout=subprocess.PIPE).stdout
    busybox = shutil.which("busybox") or fail("busybox is missing: apt-get install busybox-static")
    if b"INTERP" in run("readelf", "-l", busybox, stdout=subprocess.PIPE).stdout:
        fail("busybox is not statically linked: apt-get install busybox-static")
    applets = ["busybox", "sh", "cp"]
    return {
        "kvorum:0.1.0": {"entrypoint": ["/usr/bin/kvorum"], "programs": [KVORUM],
                         "libraries": LIBRARIES if dynamic else []},
        "busybox:1.37.0-musl": {"entrypoint": ["/bin/sh"], "programs": [],
                                "also": {f"/bin/{name}": busybox for name in applets}},
    }


def cluster_in(place):
    made = Cluster(place, images(), NAMESPACE, DOMAIN, probe)
    made.secrets["kvorum"] = {"cluster-secret": secrets.token_hex(32).encode(),
                              "admin-token": secrets.token_hex(16).encode()}
    return made


def in_pod(cluster, *words, pod=f"{NAME}-0", expect=0):
    code, said = cluster.exec(pod, "kvorum", *words)
    if code != expect:
        fail("kvorum", *words, "ends with", code, said)
    return said


def memberships(cluster):
    """Returns each node's state as it reports it; None for a node that is down."""
    code, said = cluster.exec(f"{NAME}-0", "kvorum", "status", "--json", *TOKEN)
    if code not in (0, 1):
        return {}
    return {node["name"]: (node.get("status") or {}).get("membership") if node["up"] else None
            for node in json.loads(said)["nodes"]}


def is_whole(cluster, nodes):
    states = memberships(cluster)
    return len(states) == nodes and set(states.values()) == {"member"}


def play_clear(place):
    cluster = cluster_in(place)
    release = Release(cluster, {"secret": {"name": "kvorum"}} | SHORT)
    release.install()
    until("three pods are ready", DEADLINE, cluster.all_ready)
    clients = Clients(cluster, None, None)
    clients.start()
    time.sleep(2)
    clients.stop()
    clients.check()
    if clients.failed:
        fail(clients.failed[:3])
    # Administration from another machine requires the token.
    code, said = cluster.exec(f"{NAME}-0", "kvorum", "cluster", "status", "--url",
                              f"http://{NAME}-1.{NAME}-nodes.{NAMESPACE}.svc.{DOMAIN}:8080")
    if code != 2 or "401" not in said:
        fail("the members are shown without a token:", code, said)
    cluster.end()


def play_zones(place):
    cluster = cluster_in(place)
    zones = [{"name": name, "storageClass": f"kvorum-{name}"} for name in "abc"]
    release = Release(cluster, {"secret": {"name": "kvorum"}, "nodes": 5, "zones": zones} | SHORT)
    release.install()
    until("five pods are ready", DEADLINE, cluster.all_ready)
    said = in_pod(cluster, "cluster", "status", *TOKEN)
    found = re.findall(r"^kvorum-(\d) .* zone (\w)", said, re.M)
    if found != [("0", "a"), ("1", "b"), ("2", "c"), ("3", "a"), ("4", "b")]:
        fail("the zones are others:", said)
    say("five nodes, in zones a, b, c, a, b")
    cluster.end()


def certificate(cluster, release):
    """Returns a Secret as cert-manager makes it, for the hosts that the chart requests."""
    kept = release.values
    release.values = kept | {"tls": {"mode": "cert-manager", "issuerRef": {"name": "ca"}}}
    asked = next(found["spec"] for found in release.objects() if found["kind"] == "Certificate")
    release.values = kept
    certs = cluster.place / "certs"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if not certs.exists():
        run(KVORUM, "cert", "ca", "--dir", certs, **quiet)
    hosts = ",".join(asked["dnsNames"] + asked["ipAddresses"])
    run(KVORUM, "cert", "node", "--dir", certs, "--host", hosts, **quiet)
    cluster.secrets["kvorum-tls"] = {
        key: (certs / file).read_bytes() for key, file in
        [("tls.crt", "node.pem"), ("tls.key", "node.key"), ("ca.crt", "ca.pem")]}
    return ssl.create_default_context(cafile=certs / "ca.pem")


def grow(cluster, release, clients):
    clients.step = "grow"
    release.upgrade(nodes=5)
    until("five pods are ready", DEADLINE, cluster.all_ready)
    until("five are members", DEADLINE, lambda: is_whole(cluster, 5))


def lose(cluster, release, clients, ordinal):
    clients.step = f"lose {ordinal}"
    name = f"{NAME}-{ordinal}"
    old = cluster.pods[name]
    with cluster.lock:
        lost = cluster.claims.pop(f"data-{name}")
        old.container.process.kill()
        thread = cluster.delete(name, by_force=True)
    thread.join()
    shutil.rmtree(lost)
    begun = time.monotonic()
    until("another pod", DEADLINE, lambda: cluster.pods.get(name) not in (None, old))
    until("all are members", DEADLINE, lambda: is_whole(cluster, 5))
    until("all pods are ready", DEADLINE, cluster.all_ready)
    say(f"{name} is rebuilt after {time.monotonic() - begun:.1f} s")
    if "has no vote" not in in_pod(cluster, "status", *TOKEN):
        fail("the status does not say that the vote is lost")
    release.upgrade()
    if "has no vote" in in_pod(cluster, "status", *TOKEN):
        fail("the upgrade has not given the vote back")
    # No other fault begins while a client still waits for the lost pod.
    time.sleep(2 * TIMEOUT)


def drain(cluster, release, clients):
    clients.step = "drain"
    release.upgrade(nodes=3)
    until("three pods are left", DEADLINE, lambda: cluster.all_ready() and is_whole(cluster, 3))


def grow_on_old_claim(cluster, release, clients):
    """The job waits for a node that was removed before, until its claim is deleted."""
    clients.step = "grow on an old claim"

    def schedule_claim_removal():
        def then():
            until("the node is up, and removed", DEADLINE, lambda: (
                pod := cluster.pods.get(f"{NAME}-3")) and pod.started and cluster.get(
                    pod.address, pod.spec["containers"][0]["readinessProbe"]) == 503)
            log = cluster.place / f"{NAME}-join.log"
            until("the job says what it waits for", DEADLINE, lambda: log.exists() and
                  "delete its claim" in log.read_text())
            with cluster.lock:
                del cluster.claims[f"data-{NAME}-3"]
                cluster.delete(f"{NAME}-3")
        threading.Thread(target=then, daemon=True).start()
    release.upgrade(schedule_claim_removal, nodes=4)
    until("four are members", DEADLINE, lambda: cluster.all_ready() and is_whole(cluster, 4))
    release.upgrade(nodes=3)
    until("three pods are left", DEADLINE, lambda: cluster.all_ready() and is_whole(cluster, 3))


def renew(cluster, release, clients):
    clients.step = "renew the certificate"

    def serial(address):
        got = ssl.get_server_certificate((address, 8080), ssl_version=ssl.PROTOCOL_TLS_CLIENT)
        return ssl.PEM_cert_to_DER_cert(got)
    address = cluster.pods[f"{NAME}-0"].address
    old = serial(address)
    certificate(cluster, release)
    cluster.apply([])
    until("the new certificate is shown", DEADLINE, lambda: serial(address) != old)


def replace_secret(cluster, clients):
    """The three steps of docs/operate/kubernetes.md."""
    clients.step = "replace the secret"
    old, new = cluster.secrets["kvorum"]["cluster-secret"], secrets.token_hex(32).encode()
    def reloads(name):
        return (cluster.place / f"{name}.log").read_text().count("cluster secrets reloaded")
    for now, also in [(old, new), (new, old), (new, None)]:
        before = {name: reloads(name) for name in cluster.pods}
        kept = {"cluster-secret": now, "admin-token": cluster.secrets["kvorum"]["admin-token"]}
        cluster.secrets["kvorum"] = kept | ({"cluster-secret-also": also} if also else {})
        cluster.apply([])
        until("all nodes read the secret again", DEADLINE, lambda: all(
            reloads(name) > before[name] for name in cluster.pods))


def roll(cluster, release, clients):
    clients.step = "roll"
    before = {name: pod.number for name, pod in cluster.pods.items()}
    release.upgrade(podAnnotations={"rolled": "yes"})
    until("all pods are new", 3 * DEADLINE, lambda: cluster.all_ready() and all(
        pod.number > before[name] for name, pod in cluster.pods.items()))
    until("all are members", DEADLINE, lambda: is_whole(cluster, 3))


def scale(cluster, clients):
    """Does kubectl scale without Helm: no data is lost; with one node few requests succeed."""
    cluster.replicas = 1
    until("one pod is left", DEADLINE, lambda: len(cluster.pods) == 1 and cluster.all_ready())
    kept, (name, address) = {}, cluster.endpoints()[0]
    done, said = clients.attempt(kept, name, address, "GET", "load/0/0", None)
    say("scaled to 1, a read is answered:", said)
    if done:
        fail("one of three replicas answers for all")
    for nodes in [3, 0, 3]:
        cluster.replicas = nodes
        until(f"{nodes} pods", DEADLINE,
              lambda: len(cluster.pods) == cluster.replicas and cluster.all_ready())
        if nodes:
            until("all are members", DEADLINE, lambda: is_whole(cluster, nodes))
            clients.check()


def play_tls(place):
    cluster = cluster_in(place)
    values = {"secret": {"name": "kvorum"}, "settings": {"require-auth": True},
              "tls": {"mode": "secret", "secretName": "kvorum-tls"}} | SHORT
    release = Release(cluster, values)
    tls = certificate(cluster, release)
    release.install()
    until("three pods are ready", DEADLINE, cluster.all_ready)
    until("three are members", DEADLINE, lambda: is_whole(cluster, 3))
    token = in_pod(cluster, "token", "create", "--name", "load", "--prefix", "load/", *TOKEN)
    token = re.search(r"kvorum_\S+", token)[0]
    clients = Clients(cluster, tls, token)
    clients.start()
    time.sleep(1)
    grow(cluster, release, clients)
    lose(cluster, release, clients, 1)
    lose(cluster, release, clients, 4)
    drain(cluster, release, clients)
    grow_on_old_claim(cluster, release, clients)
    renew(cluster, release, clients)
    replace_secret(cluster, clients)
    roll(cluster, release, clients)
    for nodes, words in [(0, "minimum"), (1, "less than founders"), (2, "less than founders")]:
        release.is_refused(words, nodes=nodes)
    release.is_refused("must be one of", founders=2)
    clients.stop()
    clients.step = "check"
    clients.check()
    for step, requests in clients.requests.items():
        say(f"{step}: {requests} requests, {clients.retried[step]} of them failed once")
    for failed in clients.failed[:10]:
        say("failed twice:", failed)
    scale(cluster, clients)
    cluster.end()
    if clients.failed or cluster.faults:
        fail(f"{len(clients.failed)} requests failed twice; {cluster.faults}")
    say(f"{sum(clients.requests.values())} requests: none failed twice")


PLAYS = {"clear": play_clear, "zones": play_zones, "tls": play_tls}


def main():
    wanted = sys.argv[5:] or ["all"]
    wanted = list(PLAYS) if wanted == ["all"] else wanted
    place = pathlib.Path(tempfile.mkdtemp(prefix="kvorum-chart-"))
    # The pods' user must be able to traverse the directory.
    place.chmod(0o755)
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
    if len(wanted) > 1:
        # Each play runs in namespaces of its own, which end with the play.
        for name in wanted:
            run("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                sys.executable, __file__, *sys.argv[1:5], name)
        return
    say("==>", wanted[0])
    try:
        PLAYS[wanted[0]](place)
    except SystemExit:
        for log in sorted(place.glob("*.log")):
            print(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]))
        raise
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    main()
