"""Replaces Kubernetes in packaging/test-chart.py: implements the parts of kubelet and of the
controllers of StatefulSets, Jobs and Endpoints that the chart relies on. Pods are processes.

    objects ─▶ Cluster ─┬─ StatefulSet: makes, rolls and stops pods ─▶ Pod ─▶ Container
                        ├─ kubelet: volumes, probes, preStop, SIGTERM, SIGKILL
                        ├─ DNS: /etc/hosts, one file for all pods
                        └─ Job: init containers, containers, tries, deadline

A container is a process in a read-only root of its own, which has the image's programs and the
volumes. The process runs as the pod's user, without capabilities, in its pod's network namespace. A
pod gets another address at each start. All addresses are loopback, 127.9.x.y, and none is
127.0.0.1, so that a node treats other pods as other machines.

The caller runs in mount, network and process namespaces of its own: all processes end with it."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

# Delay from a change of a pod's readiness to the change of the services' endpoints, in seconds.
ENDPOINTS_DELAY = 0.5
# Pause before an ended container starts again, in seconds.
BACKOFF = 1
LIBRARIES = ["/lib", "/lib64", "/usr/lib"]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEWNET = 0x40000000
NO_NEW_PRIVS = 38
libc = ctypes.CDLL(None, use_errno=True)


def run(*words, **kept):
    return subprocess.run([str(word) for word in words], check=True, **kept)


def say(*words):
    print(f"{time.monotonic() - BEGUN:6.1f} s ", *words, flush=True)


BEGUN = time.monotonic()


def until(what, seconds, condition):
    """Waits for a condition and returns its result."""
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"FAILED: this did not happen in {seconds} s: {what}")
        time.sleep(0.05)
    return met


def enter(spec):
    """Enters a container's namespaces and root, and becomes its process."""
    if libc.setns(os.open(spec["network"], os.O_RDONLY), NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.chroot(spec["root"])
    os.chdir("/")
    os.setgroups([spec["group"]])
    os.setgid(spec["group"])
    os.setuid(spec["user"])
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    for place in [spec["argv"][0]] if "/" in spec["argv"][0] else [
            f"{at}/{spec['argv'][0]}" for at in spec["env"]["PATH"].split(":")]:
        if os.access(place, os.X_OK):
            os.execve(place, spec["argv"], spec["env"])
    print(f"exec: {spec['argv'][0]}: no such file in the image", file=sys.stderr)
    os._exit(127)


def expanded(text, env):
    """Expands $(NAME) as Kubernetes does: unknown names stay, $$ is a $."""
    def value(found):
        if found[0] == "$$":
            return "$"
        return env.get(found[1], found[0])
    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


class Container:
    """A process in its image's root."""

    def __init__(self, pod, spec, log):
        self.pod, self.spec, self.log = pod, spec, log
        self.confined = spec["securityContext"]
        self.env = {"PATH": PATH, "HOSTNAME": pod.name}
        for variable in spec.get("env", []):
            self.env[variable["name"]] = self.value(variable)
        image = pod.cluster.images[spec["image"]]
        self.root = pod.place / f"root-{spec['name']}"
        self.make_root(image)
        words = spec.get("command") or image["entrypoint"]
        args = spec.get("args") or ([] if "command" in spec else image.get("cmd", []))
        self.argv = [expanded(word, self.env) for word in [*words, *args]]
        self.process = None

    def value(self, variable):
        source = variable.get("valueFrom")
        if source is None:
            return expanded(variable.get("value", ""), self.env)
        if "fieldRef" in source:
            return {"metadata.name": self.pod.name}[source["fieldRef"]["fieldPath"]]
        key = source["secretKeyRef"]
        return self.pod.cluster.secrets[key["name"]][key["key"]].decode().strip()

    def make_root(self, image):
        root = self.root
        mounts = {f"/usr/bin/{pathlib.Path(at).name}": at for at in image["programs"]}
        mounts |= {at: at for at in image.get("libraries", [])}
        mounts |= image.get("also", {})
        mounts["/etc/hosts"] = self.pod.cluster.hosts
        mounts |= {f"/dev/{name}": f"/dev/{name}" for name in ["null", "urandom"]}
        read_only = set(mounts)
        for mount in self.spec.get("volumeMounts", []):
            mounts[mount["mountPath"]] = self.pod.volumes[mount["name"]]
            if mount.get("readOnly"):
                read_only.add(mount["mountPath"])
        root.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", root)
        (root / "proc").mkdir()
        run("mount", "-t", "proc", "proc", root / "proc")
        for inside, outside in sorted(mounts.items()):
            at = root / inside.lstrip("/")
            if pathlib.Path(outside).is_dir():
                at.mkdir(parents=True, exist_ok=True)
            else:
                at.parent.mkdir(parents=True, exist_ok=True)
                at.touch()
            run("mount", "--bind", outside, at)
            if inside in read_only and not inside.startswith("/dev/"):
                run("mount", "-o", "remount,bind,ro", at)
        if self.confined["readOnlyRootFilesystem"]:
            run("mount", "-o", "remount,ro", root)

    def command_line(self, argv):
        user = self.pod.spec["securityContext"]
        assert user["runAsNonRoot"] and user["runAsUser"] and self.confined["capabilities"]["drop"]
        spec = {"network": f"/run/netns/{self.pod.network}", "root": str(self.root), "argv": argv,
                "env": self.env, "user": user["runAsUser"], "group": user["runAsGroup"]}
        return [sys.executable, __file__, json.dumps(spec)]

    def start(self):
        self.process = subprocess.Popen(
            self.command_line(self.argv), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            start_new_session=True)

    def exec(self, *words):
        """Does kubectl exec."""
        return subprocess.run(self.command_line(list(words)), stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

    def runs(self):
        return self.process is not None and self.process.poll() is None


class Pod:
    """A pod: its network, volumes and containers."""

    def __init__(self, cluster, name, template, revision=0):
        self.cluster, self.name, self.revision = cluster, name, revision
        self.spec = template["spec"]
        self.labels = template["metadata"]["labels"]
        self.ready_since, self.started, self.stopping, self.gone = None, False, False, False
        self.starts = 0
        cluster.pods_made += 1
        self.number = cluster.pods_made
        self.network = f"pod{self.number}"
        self.address = f"127.9.{self.number // 250}.{self.number % 250 + 1}"
        self.place = cluster.place / "pods" / f"{name}-{self.number}"
        self.place.mkdir(parents=True)
        self.log = open(cluster.place / f"{name}.log", "ab")
        self.volumes = {}
        self.make_network()

    def make_network(self):
        run("ip", "netns", "add", self.network)
        run("ip", "link", "add", f"v{self.number}", "type", "veth", "peer", "name", "eth0", "netns",
            self.network)
        run("ip", "link", "set", f"v{self.number}", "master", "pods", "up")
        run("ip", "netns", "exec", self.network, "sh", "-ec", LOOPBACK +
            f"ip address add {self.address}/16 dev eth0; ip link set eth0 up")

    def make_volumes(self, claims=()):
        group = self.spec["securityContext"]["fsGroup"]
        for volume in [*self.spec.get("volumes", []), *claims]:
            at = self.place / "volumes" / volume["name"]
            if "emptyDir" in volume:
                at.mkdir(parents=True)
                os.chown(at, 0, group)
                at.chmod(0o2777)
            elif "claim" in volume:
                at = self.cluster.claim(volume["claim"], group)
            else:
                at.mkdir(parents=True)
                self.project(volume, at, group)
            self.volumes[volume["name"]] = at

    def project(self, volume, at, group):
        """Writes the files of a ConfigMap or Secret, behind a link that each change replaces."""
        source = volume.get("secret") or volume["configMap"]
        kind = "secrets" if "secret" in volume else "maps"
        name = source["secretName" if kind == "secrets" else "name"]
        data = getattr(self.cluster, kind)[name]
        items = {item["key"]: item["path"] for item in source.get("items", [])}
        version = at / f"..{time.monotonic_ns()}"
        version.mkdir()
        for key, value in data.items():
            path = items.get(key) if items else key
            if path is None:
                continue
            file = version / path
            file.write_bytes(value)
            # A volume with fsGroup is readable by the group.
            file.chmod(source.get("defaultMode", 0o644) | 0o440)
            os.chown(file, 0, group)
            if not (at / path).is_symlink():
                (at / path).symlink_to(f"..data/{path}")
        (at / "..new").symlink_to(version.name)
        os.rename(at / "..new", at / "..data")
        for link in at.iterdir():
            if not link.name.startswith("..") and not link.exists():
                link.unlink()

    def refresh(self):
        """Updates the volumes after a change of a ConfigMap or Secret, as kubelet does."""
        for volume in self.spec.get("volumes", []):
            if "secret" in volume or "configMap" in volume:
                self.project(volume, self.volumes[volume["name"]],
                             self.spec["securityContext"]["fsGroup"])

    def serve(self):
        """Runs the pod from start to end, in a thread of its own."""
        spec = self.spec["containers"][0]
        self.container = Container(self, spec, self.log)
        while not self.stopping:
            self.starts += 1
            self.started, self.ready_since = False, None
            self.container.start()
            self.probe(spec)
            if self.stopping:
                break
            say(f"{self.name} ended with exit code {self.container.process.poll()}")
            time.sleep(BACKOFF)

    def probe(self, spec):
        due = {name: 0 for name in ["startupProbe", "livenessProbe", "readinessProbe"]}
        failed = dict.fromkeys(due, 0)
        while self.container.runs() and not self.stopping:
            for name in due:
                if (name == "startupProbe") == self.started or time.monotonic() < due[name]:
                    continue
                probe = spec[name]
                due[name] = time.monotonic() + probe["periodSeconds"]
                if self.cluster.get(self.address, probe) == 200:
                    failed[name] = 0
                    if name == "startupProbe":
                        self.started = True
                    elif name == "readinessProbe" and self.ready_since is None:
                        self.ready_since = time.monotonic()
                else:
                    failed[name] += 1
                    if failed[name] < probe["failureThreshold"]:
                        continue
                    if name == "readinessProbe":
                        self.ready_since = None
                    else:
                        say(f"{self.name}: {name} fails: restarted")
                        self.container.process.kill()
            time.sleep(0.05)

    def is_ready(self, seconds=0):
        since = self.ready_since
        return (since is not None and not self.stopping and self.container.runs() and
                time.monotonic() - since >= seconds)

    def stop(self, by_force=False):
        """Deletes the pod: removes it from the services, then preStop, SIGTERM, SIGKILL."""
        self.stopping = True
        grace = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        process = self.container.process
        if not by_force:
            time.sleep(self.spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"])
            process.send_signal(signal.SIGTERM)
            while process.poll() is None and time.monotonic() < grace:
                time.sleep(0.05)
            if process.poll() is None:
                say(f"{self.name} did not end within its grace")
                self.cluster.faults.append(f"{self.name}: SIGKILL")
        process.kill()
        process.wait()
        self.remove()

    def remove(self):
        # Roots end with the mount namespace; a remaining network would keep the address.
        subprocess.run(["ip", "link", "delete", f"v{self.number}"], check=False)
        self.log.close()
        self.gone = True


LOOPBACK = """for at in all default; do echo 1 >/proc/sys/net/ipv4/conf/$at/route_localnet; done
ip link set lo up; ip address flush dev lo; ip address add 127.0.0.1/32 dev lo
"""


class Cluster:
    """The applied objects, and the controllers that keep the pods as the objects say."""

    def __init__(self, place, images, namespace, domain, get):
        self.place, self.images, self.namespace = place, images, namespace
        self.domain, self.get = domain, get
        self.secrets, self.maps, self.claims = {}, {}, {}
        self.objects, self.pods, self.faults = {}, {}, []
        self.pods_made = 0
        self.endpoint_updates = [(0, [])]
        self.replicas = 0
        self.hosts = place / "hosts"
        self.lock = threading.RLock()
        run("mount", "--make-rprivate", "/")
        os.makedirs("/run/netns", exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        run("sh", "-ec", LOOPBACK + "ip link add pods type bridge; ip link set pods up\n"
            "ip address add 127.9.255.254/16 dev pods")
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.ends = False
        threading.Thread(target=self.control, daemon=True).start()

    def apply(self, objects):
        """Does kubectl apply, for the kinds that have an effect here."""
        with self.lock:
            for found in objects:
                self.objects[found["kind"], found["metadata"]["name"]] = found
                if found["kind"] == "ConfigMap":
                    self.maps[found["metadata"]["name"]] = {
                        key: text.encode() for key, text in found["data"].items()}
                elif found["kind"] == "StatefulSet":
                    self.replicas = found["spec"]["replicas"]
            for pod in self.pods.values():
                if pod.volumes and not pod.stopping:
                    pod.refresh()

    def stateful_set(self):
        return next((found for (kind, _), found in self.objects.items() if kind == "StatefulSet"),
                    None)

    def claim(self, name, group):
        if name not in self.claims:
            at = self.place / "claims" / f"{name}-{time.monotonic_ns()}"
            at.mkdir(parents=True)
            # A new claim is like a volume after mkfs.ext4 and the change of its group to fsGroup.
            (at / "lost+found").mkdir(mode=0o700)
            os.chown(at, 0, group)
            at.chmod(0o2775)
            self.claims[name] = at
        return self.claims[name]

    def control(self):
        while not self.ends:
            with self.lock:
                found = self.stateful_set()
                if found is not None:
                    self.reconcile(found)
                self.update_endpoints()
            time.sleep(0.1)

    def reconcile(self, found):
        spec, name = found["spec"], found["metadata"]["name"]
        assert spec["podManagementPolicy"] == "Parallel"
        self.pods = {key: pod for key, pod in self.pods.items() if not pod.gone}
        revision = json.dumps(spec["template"], sort_keys=True)
        for ordinal in range(self.replicas):
            if f"{name}-{ordinal}" not in self.pods:
                self.start(f"{name}-{ordinal}", spec, revision)
        running = {int(key.rsplit("-", 1)[1]): pod for key, pod in self.pods.items()}
        for ordinal, pod in running.items():
            if ordinal >= self.replicas and not pod.stopping:
                self.delete(pod.name)
        least = spec.get("minReadySeconds", 0)
        if all(pod.is_ready(least) for pod in running.values()):
            old = [pod for _, pod in sorted(running.items()) if pod.revision != revision]
            if old:
                self.delete(old[-1].name)

    def check(self, spec):
        """Checks references between objects that pods rely on."""
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        for (kind, name), found in self.objects.items():
            if kind == "Service":
                assert found["spec"]["selector"].items() <= labels.items(), name
            elif kind == "PodDisruptionBudget":
                assert found["spec"]["selector"]["matchLabels"].items() <= labels.items(), name
        nodes = self.objects["Service", spec["serviceName"]]["spec"]
        assert nodes["clusterIP"] == "None" and nodes["publishNotReadyAddresses"]

    def start(self, name, spec, revision):
        self.check(spec)
        pod = self.pods[name] = Pod(self, name, spec["template"], revision)
        claims = [{"name": template["metadata"]["name"],
                   "claim": f"{template['metadata']['name']}-{name}"}
                  for template in spec["volumeClaimTemplates"]]
        pod.make_volumes(claims)
        threading.Thread(target=pod.serve, daemon=True).start()

    def delete(self, name, by_force=False):
        """Does kubectl delete pod."""
        say(f"{name} is deleted")
        pod = self.pods[name]
        pod.stopping = True
        thread = threading.Thread(target=pod.stop, args=(by_force,), daemon=True)
        thread.start()
        return thread

    def update_endpoints(self):
        """Updates DNS and endpoints."""
        found = self.stateful_set()
        service = found and found["spec"]["serviceName"]
        lines = ["127.0.0.1 localhost"]
        for pod in self.pods.values():
            if not pod.gone:
                name = f"{pod.name}.{service}.{self.namespace}.svc.{self.domain}"
                lines.append(f"{pod.address} {name}")
        text = "\n".join(lines) + "\n"
        if self.hosts.read_text() != text:
            # Writes the file in place, because the file is mounted into every container.
            self.hosts.write_text(text)
        ready = [(pod.name, pod.address) for pod in self.pods.values() if pod.is_ready()]
        if ready != self.endpoint_updates[-1][1]:
            self.endpoint_updates.append((time.monotonic() + ENDPOINTS_DELAY, ready))

    def endpoints(self):
        """Returns the pods behind the clients' service, with name and address."""
        now = time.monotonic()
        return [ready for known, ready in list(self.endpoint_updates) if known <= now][-1]

    def exec(self, name, *words):
        said = self.pods[name].container.exec(*words)
        return said.returncode, said.stdout or said.stderr

    def all_ready(self):
        with self.lock:
            found = self.stateful_set()
            revision = json.dumps(found["spec"]["template"], sort_keys=True)
            return len(self.pods) == self.replicas and all(
                pod.is_ready() and pod.revision == revision for pod in self.pods.values())

    def job(self, found):
        """Runs a job to its end; returns whether it succeeded, and its output."""
        spec, name = found["spec"], found["metadata"]["name"]
        deadline = time.monotonic() + spec["activeDeadlineSeconds"]
        with self.lock:
            log = self.place / f"{name}.log"
            log.unlink(missing_ok=True)
        for _ in range(spec["backoffLimit"] + 1):
            with self.lock:
                pod = Pod(self, name, spec["template"])
                pod.make_volumes()
            done = True
            for container in [*pod.spec["initContainers"], *pod.spec["containers"]]:
                process = Container(pod, container, pod.log)
                process.start()
                while process.runs() and time.monotonic() < deadline:
                    time.sleep(0.05)
                if process.runs():
                    process.process.kill()
                done = process.process.wait() == 0
                if not done:
                    break
            pod.remove()
            if done or time.monotonic() >= deadline:
                break
        return done, log.read_text()

    def end(self):
        self.replicas = 0
        until("all pods stop", 90, lambda: not self.pods)
        self.ends = True
        shutil.rmtree(self.place / "claims", ignore_errors=True)


if __name__ == "__main__":
    enter(json.loads(sys.argv[1]))
