"""Checks the manifests of this folder; check.sh prepares what it needs.

Each object is valid by the schema of its kind. Names of configuration, secrets, claims, volumes and ports resolve. The
commands of the containers serve the app: they run as processes with the pods' environment, around a nats-server with the
users that `kaskade auth init` makes, and answer a request over HTTP; a gateway with TLS answers its probes. The server is
stopped as the kubelet stops it.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import tomllib
import urllib.request

import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
KASKADE = os.environ["KASKADE_BIN"]
# How long a process may take to serve; the machine may be busy.
TIMEOUT = 120
# The API of the oldest Kubernetes that is maintained, and of the newest that the schemas know.
VERSIONS = ["1.34", "1.37"]
WEIGHTS = {"small": "sentiment-pico", "large": "sentiment-tiny"}


def objects(kustomization):
    for name in kustomization["resources"]:
        for found in yaml.safe_load_all((HERE / name).read_text()):
            yield name, found


def pod_of(found):
    return found.get("spec", {}).get("template", {}).get("spec") if "template" in found.get("spec", {}) else None


def check_schemas(found):
    for version in VERSIONS:
        for name, one in found:
            kubernetes_validate.validate(one, version, strict=True)


def check_names(kustomization, found):
    generated = {
        kind: {entry["name"] for entry in kustomization[f"{kind}Generator"]} for kind in ("configMap", "secret")
    }
    claims = {one["metadata"]["name"] for _, one in found if one["kind"] == "PersistentVolumeClaim"}
    labels = [one["spec"]["template"]["metadata"]["labels"] for _, one in found if pod_of(one)]
    for name, one in found:
        selector = one.get("spec", {}).get("selector")
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= given.items() for given in labels), f"{name}: no pod has {wanted}"
        pod = pod_of(one)
        if not pod:
            continue
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        for volume in pod["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in generated["configMap"], volume
            if "secret" in volume:
                assert volume["secret"]["secretName"] in generated["secret"], volume
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims, volume
        for container in pod["containers"]:
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert container[probe]["httpGet"]["port"] in ports, f"{name}: {probe}"
            for mount in container["volumeMounts"]:
                assert mount["name"] in volumes, f"{name}: {mount}"


def check_workers(found):
    """Every pod of the workers is a worker of app.toml, by its name."""
    workers = next(one for _, one in found if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "worker")
    tables = (HERE / "app/app.toml").read_text().split("[[workers]]")[1:]
    names = [re.search(r'name = "(.+)"', table).group(1) for table in tables]
    pods = [f"worker-{number}" for number in range(workers["spec"]["replicas"])]
    assert pods == names[: len(pods)], f"{pods} and {names}"


def check_network(found):
    """Pods of the app can connect to the NATS servers, and these to each other; no pod can connect to the monitoring port."""
    pods = {
        one["metadata"]["name"]: (one["spec"]["template"]["metadata"]["labels"], pod_of(one)["containers"][0]["ports"])
        for _, one in found
        if pod_of(one)
    }

    def is_selected(selector, labels):
        expressions = selector.get("matchExpressions", [])
        assert all(expression["operator"] == "In" for expression in expressions)
        return selector.get("matchLabels", {}).items() <= labels.items() and all(
            labels.get(expression["key"]) in expression["values"] for expression in expressions
        )

    labels, ports = pods["nats"]
    policy = next(one["spec"] for _, one in found if one["kind"] == "NetworkPolicy")
    assert is_selected(policy["podSelector"], labels) and policy["policyTypes"] == ["Ingress"]
    reached = {
        (port["port"], name)
        for rule in policy["ingress"]
        for port in rule["ports"]
        for name, (labels, _) in pods.items()
        for peer in rule["from"]
        if is_selected(peer["podSelector"], labels)
    }
    assert {port for port, _ in reached} <= {port["name"] for port in ports}
    roles = pods.keys() - {"nats"}
    assert reached == {("client", name) for name in roles} | {("cluster", "nats")}, reached


def check_spread(found):
    """The pods of a role are spread over nodes."""
    for name, one in found:
        pod = pod_of(one)
        if not pod or one["spec"]["replicas"] == 1:
            continue
        labels = one["spec"]["template"]["metadata"]["labels"]
        terms = pod.get("affinity", {}).get("podAntiAffinity", {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])
        spreads = pod.get("topologySpreadConstraints", []) + [term["podAffinityTerm"] for term in terms]
        assert any(
            spread["topologyKey"] == "kubernetes.io/hostname" and spread["labelSelector"]["matchLabels"].items() <= labels.items()
            for spread in spreads
        ), f"{name}: all pods may share a node"


def check_security(found):
    """Every pod satisfies the standard `restricted`, which the namespace enforces."""
    namespace = next(one for _, one in found if one["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, one in found:
        if not (pod := pod_of(one)):
            continue
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name
        assert all(volume.keys() & {"configMap", "secret", "emptyDir", "persistentVolumeClaim"} for volume in pod["volumes"]), name
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["capabilities"]["drop"] == ["ALL"], name


def mebibytes(text):
    return int(re.fullmatch(r"(\d+)MiB|(\d+)Mi|(\d+)Gi", text).expand(r"\1\2\3")) * (1024 if text.endswith("Gi") else 1)


def check_nats(found):
    """The server's Go runtime knows its memory, and a server that stops has the time to move its clients."""
    pod = next(pod_of(one) for _, one in found if pod_of(one) and one["metadata"]["name"] == "nats")
    container = pod["containers"][0]
    limit = mebibytes(next(variable["value"] for variable in container["env"] if variable["name"] == "GOMEMLIMIT"))
    assert 0.8 <= limit / mebibytes(container["resources"]["limits"]["memory"]) <= 0.95
    duration = int(re.search(r"lame_duck_duration: (\d+)s", (HERE / "nats.conf").read_text()).group(1))
    assert pod["terminationGracePeriodSeconds"] >= duration + 10


def check_ports(found):
    """gRPC has a port of its own whose protocol a service mesh knows."""
    service = next(one for _, one in found if one["kind"] == "Service" and one["metadata"]["name"] == "gateway")
    protocols = {port["name"]: (port["targetPort"], port["appProtocol"]) for port in service["spec"]["ports"]}
    assert protocols == {"http": ("http", "http"), "grpc": ("http", "kubernetes.io/h2c")}, protocols


def check_size(kustomization):
    """Every ConfigMap fits, and the documented command does not copy it into an annotation, which holds less."""
    for entry in kustomization["configMapGenerator"]:
        size = sum((HERE / file).stat().st_size for file in entry["files"])
        assert size < 1 << 20, f"the ConfigMap `{entry['name']}` has {size} bytes"
    for text in ((ROOT / "docs/how-to/kubernetes.md").read_text(), (HERE / "kustomization.yaml").read_text()):
        commands = re.findall(r"kubectl apply [^`\n]*--kustomize", text)
        assert commands and all("--server-side" in command for command in commands), commands


def check_shutdown(found):
    """A gateway serves while nodes still send it requests, and every process has the time to answer what it accepted."""
    app = tomllib.loads((HERE / "app/app.toml").read_text())
    seconds = lambda text: int(re.fullmatch(r"(\d+)s", text).group(1))
    delay = seconds(app["gateway"]["shutdown_delay"])
    assert delay >= 5, "a gateway stops before it is out of the endpoints"
    drain = seconds(app.get("ingress", {}).get("drain_timeout", "10s"))
    for name, one in found:
        pod = pod_of(one)
        if pod and pod["containers"][0]["image"] == "kaskade":
            needed = drain + (delay if one["metadata"]["name"] == "gateway" else 0) + 5
            assert pod["terminationGracePeriodSeconds"] >= needed, f"{name}: {needed} s are needed"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path, body=None, scheme="http"):
    url = f"{scheme}://127.0.0.1:{port}{path}"
    headers = {"content-type": "application/json"} if body else {}
    # Like the kubelet's probes, which verify no certificate.
    unverified = ssl._create_unverified_context()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30, context=unverified) as answer:
        return answer.read().decode()


def wait_for(what, test, processes):
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return test()
        except OSError:
            pass
        for name, process in processes.items():
            assert process.poll() is None, f"{name} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{what} took longer than {TIMEOUT} s"
        time.sleep(0.1)


def prepare(folder):
    """The users, the app and the checkpoints, as a cluster would mount them."""
    routes = [word for number in range(3) for word in ("--route", f"nats-{number}.nats")]
    subprocess.run([KASKADE, "auth", "init", "reviews", "--out", folder / "auth", *routes], check=True, stdout=subprocess.DEVNULL)
    for name, weights in WEIGHTS.items():
        shutil.copytree(ROOT / "examples/sentiment/weights" / weights, folder / "models" / name)
    shutil.copytree(HERE / "app", folder / "app")
    app = folder / "app/app.toml"
    app.write_text(app.read_text().replace("/models/", f"{folder}/models/"))


def check_generated_files(kustomization, folder):
    for entry in kustomization["configMapGenerator"] + kustomization["secretGenerator"]:
        for file in entry["files"]:
            assert (folder / file).is_file() or (HERE / file).is_file(), f"{file} is not there"


def commands(found, folder):
    """Name, arguments and environment of every pod of the app, in the order of the manifests."""
    for _, one in found:
        pod, name = pod_of(one), one["metadata"]["name"]
        if not pod or name == "nats":
            continue
        container = pod["containers"][0]
        secret = next(volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume)
        for number in range(one["spec"]["replicas"]):
            given = {variable["name"]: variable.get("value", f"{name}-{number}") for variable in container["env"]}
            arguments = [word.replace("$(POD_NAME)", given.get("POD_NAME", "")) for word in container["args"]]
            arguments = [word.replace("=/app/", f"={folder}/app/") for word in arguments]
            given["NATS_NKEY"] = given["NATS_NKEY"].replace("/auth/", f"{folder}/auth/{secret.removeprefix('auth-')}/")
            yield f"{name}-{number}", arguments, given


def nats_config(folder, server):
    """The servers' configuration, for one server on this machine."""
    text = (HERE / "nats.conf").read_text()
    for old, new in {
        "0.0.0.0:4222": f"127.0.0.1:{server}",
        "0.0.0.0:8222": f"127.0.0.1:{free_port()}",
        "store_dir: /data": f"store_dir: {json.dumps(str(folder / 'data'))}",
        "/run/nats": str(folder),
        'include "../auth/cluster.conf"': "",
        "../auth/": "auth/server/",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    config = folder / "nats.conf"
    config.write_text(text)
    return config


def tls_app(folder):
    """Makes a certificate, and writes the app with a gateway that uses it; returns the app's file."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-keyout", key, "-out", certificate, "-subj", "/CN=gateway"],
        check=True, capture_output=True,
    )
    app = folder / "app/tls.toml"
    files = f"certificate = {json.dumps(str(certificate))}\nkey = {json.dumps(str(key))}\n"
    app.write_text((folder / "app/app.toml").read_text() + f"\n[gateway.tls]\n{files}")
    return app


def check_probes(found, port, processes):
    """A gateway with TLS answers the probes of the manifest, with the scheme that its comment names."""
    text = (HERE / "gateway.yaml").read_text()
    assert "scheme: HTTPS" in text and "scheme: HTTPS" in (ROOT / "docs/how-to/kubernetes.md").read_text()
    pod = next(pod_of(one) for _, one in found if pod_of(one) and one["metadata"]["name"] == "gateway")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = pod["containers"][0][probe]["httpGet"]["path"]
        wait_for(f"{probe} over TLS", lambda path=path: get(port, path, scheme="https"), processes)


def stop_server(found, folder, server, process):
    """Stops the server as the kubelet does; it must move its clients before it ends."""
    pod = next(pod_of(one) for _, one in found if pod_of(one) and one["metadata"]["name"] == "nats")
    before = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    words = [word.replace("/run/nats", str(folder)) for word in before]
    assert words[0] == "/nats-server"
    with socket.create_connection(("127.0.0.1", server)) as client:
        client.recv(4096)
        subprocess.run([os.environ["NATS_SERVER"], *words[1:]], check=True)
        wait_for("the lame duck mode", lambda: ducks(folder), {"nats": process})
        process.send_signal(signal.SIGTERM)
        # Until the server closes the connection, after the grace period.
        while client.recv(4096):
            pass
    assert process.wait(timeout=60) == 0
    assert "Closing existing clients" in (folder / "nats.log").read_text()


def ducks(folder):
    if "lame duck" not in (folder / "nats.log").read_text():
        raise OSError


def serve(found, folder):
    server, processes, ports = free_port(), {}, {}
    log = folder / "nats.log"
    nats = subprocess.Popen([os.environ["NATS_SERVER"], "--config", nats_config(folder, server), "--log", log])
    processes["nats"] = nats
    try:
        wait_for("nats-server", lambda: socket.create_connection(("127.0.0.1", server)).close(), processes)
        given = list(commands(found, folder))
        name, arguments, environment = next(command for command in given if command[0] == "gateway-0")
        app = tls_app(folder)
        given.append(("gateway-tls", [word.replace(f"{folder}/app/app.toml", str(app)) for word in arguments], dict(environment)))
        for name, arguments, environment in given:
            ports[name] = free_port()
            environment |= {"NATS_URL": f"nats://127.0.0.1:{server}", "KASKADE_HTTP": f"127.0.0.1:{ports[name]}"}
            processes[name] = subprocess.Popen([KASKADE, *arguments], env=os.environ | environment)
        check_probes(found, ports.pop("gateway-tls"), processes)
        for name, port in ports.items():
            wait_for(f"{name} becomes ready", lambda port=port: get(port, "/ready"), processes)
        body = json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a warm and moving film"]}]})
        for name in ("gateway-0", "gateway-1"):
            answer = json.loads(get(ports[name], "/v2/models/reviews/infer", body.encode()))
            assert any(output["name"] == "logits" for output in answer["outputs"]), answer
        served = [process for process in processes.values() if process is not nats]
        for process in served:
            process.send_signal(signal.SIGTERM)
        for process in served:
            process.wait(timeout=60)
        stop_server(found, folder, server, nats)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    # A process that starts before the planner tries once to create the plan store, and then waits for it.
    early = "$JS.API.STREAM.CREATE.KV_kaskade-reviews"
    refused = [line for line in log.read_text().splitlines() if "Violation" in line and early not in line]
    assert not refused, "\n".join(refused)
    return len(processes)


def main():
    kustomization = yaml.safe_load((HERE / "kustomization.yaml").read_text())
    found = list(objects(kustomization))
    check_schemas(found)
    check_names(kustomization, found)
    check_workers(found)
    check_network(found)
    check_spread(found)
    check_security(found)
    check_nats(found)
    check_ports(found)
    check_size(kustomization)
    check_shutdown(found)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prepare(folder)
        check_generated_files(kustomization, folder)
        served = serve(found, folder)
    print(f"deploy/kubernetes: {len(found)} objects are valid for Kubernetes {' and '.join(VERSIONS)}; {served} processes served the app")


if __name__ == "__main__":
    main()
