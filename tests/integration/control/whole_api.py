"""Uses each call of the API once, by code that is generated from the definition. Arguments: the node's socket, the folder of the definition, a module
that counts words, a model, a key, and files in an archive."""

import hashlib
import pathlib
import subprocess
import sys
import tempfile

import grpc

socket, definition, module, model, key, files = sys.argv[1:]
folder = tempfile.TemporaryDirectory()
generated = folder.name
sources = sorted(str(path) for path in pathlib.Path(definition).glob("pinion/v1/*.proto"))
protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{definition}", f"--python_out={generated}", f"--grpc_python_out={generated}"]
subprocess.run(protoc + sources, check=True)
sys.path.insert(0, generated)

from pinion.v1 import control_pb2, control_pb2_grpc, objects_pb2, reports_pb2  # noqa: E402

TENANT = "python"
TIMEOUT_S = 60
CHUNK_BYTES = 64 << 10


def uploads(path):
    """The messages of an upload, and the digest of what is uploaded."""
    content = pathlib.Path(path).read_bytes()
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    header = control_pb2.UploadRequest.Header(tenant=TENANT, digest=digest, size_bytes=len(content))
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    parts = [control_pb2.UploadRequest(header=header)] + [control_pb2.UploadRequest(chunk=chunk) for chunk in chunks]
    return parts, digest, len(content)


def refused(call, request):
    """The code with which a request is refused, and whether the details say something."""
    try:
        call(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return error.code().name if error.details() else "without details"
    return "not refused"


def use(node, used):
    def ask(name, request):
        used.add(name)
        return getattr(node, name)(request, timeout=TIMEOUT_S)

    digests = {}
    for name, path in [("UploadModule", module), ("UploadModel", model), ("UploadFiles", files)]:
        parts, digest, size_bytes = uploads(path)
        answer = ask(name, iter(parts))
        assert (answer.digest, answer.size_bytes) == (digest, size_bytes), answer
        digests[name] = digest
    pem = pathlib.Path(key).read_bytes()
    sealed = ask("UploadKey", control_pb2.UploadKeyRequest(tenant=TENANT, pem=pem))
    assert len(list(ask("ListUploads", reports_pb2.ListUploadsRequest(tenant=TENANT)))) == 4

    stage = objects_pb2.Stage(
        module="count", keys=["site"], models=["classes"], files=objects_pb2.Files(digest=digests["UploadFiles"])
    )
    match = objects_pb2.Match(destination="192.0.2.1", protocol=17)
    rule = objects_pb2.Rule(tenant=TENANT, name="udp", chain="count", match=match, policy=objects_pb2.POLICY_SHARED)
    apply = control_pb2.ApplyRequest(
        tenants=[objects_pb2.Tenant(name=TENANT, weight=2)],
        modules=[objects_pb2.Module(tenant=TENANT, name="count", digest=digests["UploadModule"])],
        keys=[objects_pb2.Key(tenant=TENANT, name="site", digest=sealed.digest)],
        models=[objects_pb2.Model(tenant=TENANT, name="classes", digest=digests["UploadModel"])],
        chains=[objects_pb2.Chain(tenant=TENANT, name="count", stages=[stage])],
        rules=[rule],
    )
    checked = control_pb2.ApplyRequest()
    checked.CopyFrom(apply)
    checked.dry_run = True
    effects = lambda answer: {outcome.effect for outcome in answer.outcomes}  # noqa: E731
    created = {control_pb2.Outcome.EFFECT_CREATED}
    assert effects(ask("Apply", checked)) == created
    assert list(ask("ListChains", reports_pb2.ListChainsRequest())) == [], "a dry run has changed something"
    applied = ask("Apply", apply)
    assert effects(applied) == created and len(applied.outcomes) == 6, applied
    assert effects(ask("Apply", apply)) == {control_pb2.Outcome.EFFECT_UNCHANGED}

    answer = ask("Invoke", control_pb2.InvokeRequest(tenant=TENANT, name="count", payload=b"to be or not\nto be"))
    assert answer.payload == b"1 6 18\n", answer
    for name, owned in [("Modules", "count"), ("Keys", "site"), ("Models", "classes"), ("Chains", "count"), ("Rules", "udp")]:
        request = getattr(reports_pb2, f"List{name}Request")(tenant=TENANT)
        assert [it.name for it in ask(f"List{name}", request)] == [owned], name
    assert [it.name for it in ask("ListTenants", reports_pb2.ListTenantsRequest())] == [TENANT]
    assert ask("GetTenant", reports_pb2.GetTenantRequest(tenant=TENANT)).ByteSize() > 0
    assert len(list(ask("ListFwps", reports_pb2.ListFwpsRequest(tenant=TENANT)))) > 0
    assert len(list(ask("ListChainInstances", reports_pb2.ListChainInstancesRequest(tenant=TENANT)))) > 0
    list(ask("GetLogs", reports_pb2.GetLogsRequest(tenant=TENANT)))
    list(ask("GetMetrics", reports_pb2.GetMetricsRequest(tenant=TENANT)))
    assert ask("GetStatus", reports_pb2.GetStatusRequest()).version

    ref = control_pb2.ObjectRef(kind=control_pb2.KIND_RULE, tenant=TENANT, name="udp")
    gone = ask("Delete", control_pb2.DeleteRequest(objects=[ref], expected_revision=applied.version))
    assert effects(gone) == {control_pb2.Outcome.EFFECT_DELETED}
    outdated = control_pb2.DeleteRequest(
        objects=[control_pb2.ObjectRef(kind=control_pb2.KIND_CHAIN, tenant=TENANT, name="count")],
        expected_revision=applied.version,
    )
    assert refused(node.Delete, outdated) == "ABORTED"
    revisions = list(ask("ListRevisions", control_pb2.ListRevisionsRequest(tenant=TENANT)))
    assert [it.number for it in revisions] == [gone.version, applied.version], revisions
    assert (revisions[0].deleted, revisions[1].created) == (1, 6) and revisions[0].time.seconds > 1_600_000_000
    before = control_pb2.GetRevisionRequest(tenant=TENANT, revision=applied.version)
    assert len(list(ask("GetRevision", before))) == 6
    restored = ask("Rollback", control_pb2.RollbackRequest(tenant=TENANT))
    assert restored.restored < gone.version and effects(restored) == created
    assert [it.name for it in node.ListRules(reports_pb2.ListRulesRequest(tenant=TENANT), timeout=TIMEOUT_S)] == ["udp"]

    unknown = control_pb2.ApplyRequest(rules=[objects_pb2.Rule(tenant=TENANT, name="x", chain="none", match=match, policy=1)])
    assert refused(node.Apply, unknown) in {"INVALID_ARGUMENT", "FAILED_PRECONDITION"}
    assert refused(node.GetTenant, reports_pb2.GetTenantRequest(tenant="nobody")) == "NOT_FOUND"


with grpc.insecure_channel("unix:" + socket) as channel:
    used = set()
    use(control_pb2_grpc.ControlStub(channel), used)
    calls = set(control_pb2.DESCRIPTOR.services_by_name["Control"].methods_by_name)
    print("not used:", sorted(calls - used))
