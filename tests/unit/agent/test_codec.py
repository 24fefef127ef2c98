from varuna_runtime.agent import codec
from varuna_runtime.agent import records as r
from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Vault
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.wire.v1 import agent_pb2, common_pb2

NEAR, FAR = Vault(node="a", host="10.0.0.1", port=7), Vault(node="b", host="10.0.0.2", port=8)
JOB_JSON = canonical.dumps(JobSpec(name="toy", entrypoint="train.py", batch_size=8, steps=6))


def wire(vault: Vault) -> common_pb2.Vault:
    return common_pb2.Vault(node=vault.node, host=vault.host, port=vault.port)


def order(secret: str = "s") -> r.StartOrder:
    return codec.start_order(
        agent_pb2.Start(
            job="j",
            generation=2,
            kind=common_pb2.GenerationKind.TRAIN,
            job_json=JOB_JSON,
            ranks=[0, 1],
            copies_secret=secret,
            vaults=[wire(NEAR), wire(FAR)],
            buddies=[agent_pb2.Buddies(rank=1, vaults=[wire(FAR)])],
            unmended_s=900.0,
        )
    )


def test_a_rank_hears_where_copies_are_and_where_its_own_go() -> None:
    for rank, buddies in ((0, []), (1, [wire(FAR)])):
        key = r.RankKey(job="j", generation=2, rank=rank)
        request = codec.prepare_request(key, order(), "10.0.0.1", "@vault")
        assert (request.vault_socket, request.copies_secret) == ("@vault", "s")
        assert list(request.vaults) == [wire(NEAR), wire(FAR)]
        assert list(request.buddies) == buddies
        assert request.unmended_s == 900.0


def test_without_a_secret_no_copies_are_kept() -> None:
    request = codec.prepare_request(r.RankKey(job="j", generation=2, rank=0), order(""), "h", "@vault")
    assert request.vault_socket == ""


def test_the_secret_is_in_no_text_of_an_order() -> None:
    assert "hidden" not in repr(order("hidden"))
