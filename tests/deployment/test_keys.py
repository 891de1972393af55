"""Keys on disk, checked with the library cryptography."""

import re
import socket
import ssl
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

import hasfl.deployment.keys as keys_module
from hasfl.deployment.channels import EDGE, FED, host_name
from hasfl.deployment.keys import add_devices, admitted, make_keys
from hasfl.errors import InputError, StorageError
from tests.cli.conftest import Hasfl
from tests.cli.conftest import hasfl as hasfl  # a fixture

FED_ADDRESSES = ["10.0.0.1", "fed.lan"]
EDGE_ADDRESSES = ["fe80::7"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment") / "keys"
    make_keys(folder, devices=["pi", "box"], fed=FED_ADDRESSES, edge=EDGE_ADDRESSES, days=30)
    return folder


def parties(keys: Path) -> dict[str, Path]:
    """The folder of each party, by the common name that its certificate must have."""
    devices = {f"device-{i}": keys / "devices" / name for i, name in enumerate(admitted(keys))}
    return {"fed": keys / "fed", "edge": keys / "edge", **devices}


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_every_chain_verifies_and_no_device_can_be_a_server(keys: Path) -> None:
    policy = PolicyBuilder().store(Store([certificate(keys / "ca" / "ca.crt")]))
    for name, folder in parties(keys).items():
        own = certificate(folder / "tls.crt")
        for server, address in ((FED, "fed.lan"), (EDGE, host_name(EDGE)), (FED, host_name(FED))):
            verifier = policy.build_server_verifier(x509.DNSName(address))
            if name == server:
                verifier.verify(own, [])
            else:
                with pytest.raises(VerificationError):
                    verifier.verify(own, [])
        extended = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert ExtendedKeyUsageOID.CLIENT_AUTH in extended
        assert (ExtendedKeyUsageOID.SERVER_AUTH in extended) == (name in (FED, EDGE))


def test_a_certificate_of_another_authority_does_not_verify(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", devices=["pi"], fed=["fed.lan"], edge=["edge.lan"])
    policy = PolicyBuilder().store(Store([certificate(keys / "ca" / "ca.crt")]))
    with pytest.raises(VerificationError):
        policy.build_server_verifier(x509.DNSName("fed.lan")).verify(
            certificate(tmp_path / "other" / "fed" / "tls.crt"), []
        )


def test_names_addresses_and_days(keys: Path) -> None:
    for name, folder in parties(keys).items():
        own = certificate(folder / "tls.crt")
        assert [attribute.value for attribute in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
            name
        ]
        assert abs(own.not_valid_after_utc - datetime.now(UTC) - timedelta(days=30)) < timedelta(hours=1)
        assert own.not_valid_before_utc < datetime.now(UTC) - timedelta(hours=12)
    names = certificate(keys / "fed" / "tls.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert set(names.value.get_values_for_type(x509.DNSName)) == {host_name(FED), "fed.lan", "localhost"}
    assert set(names.value.get_values_for_type(x509.IPAddress)) == set(
        map(ip_address, ("10.0.0.1", "127.0.0.1"))
    )
    names = certificate(keys / "edge" / "tls.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.IPAddress) == [ip_address("fe80::7")]


def test_each_key_fits_its_certificate_and_no_key_is_used_twice(keys: Path) -> None:
    seen = []
    for name, folder in parties(keys).items():
        key = load_pem_private_key((folder / "tls.key").read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.public_key() == certificate(folder / "tls.crt").public_key()
        seen.append((folder / "tls.key").read_bytes())
        if name != FED:
            seen.append((folder / "node.key").read_bytes())
    assert len(set(seen)) == len(seen) == 7


def test_flower_reads_the_node_keys(keys: Path) -> None:
    """With the functions of flower-supernode and of `flwr supernode register`."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    for name, folder in parties(keys).items():
        if name == FED:
            assert not (folder / "node.key").exists()
            continue
        key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        assert load_ssh_public_key((folder / "node.pub").read_bytes()) == key.public_key()
        for public in (folder / "node.pub", keys / "fed" / "nodes" / f"{name}.pub"):
            assert try_load_public_key(public) == public_key_to_bytes(key.public_key())


def test_only_the_owner_may_read(keys: Path) -> None:
    for path in (keys, *keys.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_party_gets_nobody_elses_secret(keys: Path) -> None:
    secrets = {path: path.read_bytes() for path in keys.rglob("*.key")}
    assert len(secrets) == 1 + 4 + 3  # the authority, TLS of all parties, nodes of all but the fed server
    for folder in parties(keys).values():
        foreign = [content for path, content in secrets.items() if path.parent != folder]
        assert not set(files(folder).values()) & set(foreign)


def test_nothing_is_overwritten(keys: Path, tmp_path: Path) -> None:
    before = files(keys)
    with pytest.raises(InputError, match="must be empty or not there"):
        make_keys(keys, devices=["pi"], fed=["a"], edge=["b"])
    for name in ("pi", "PI", "box"):
        with pytest.raises(InputError, match="twice"):
            add_devices(keys, devices=[name])
    assert files(keys) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="must be empty or not there"):
        make_keys(tmp_path / "file", devices=["pi"], fed=["a"], edge=["b"])
    (tmp_path / "empty").mkdir()
    make_keys(tmp_path / "empty", devices=["pi"], fed=["a"], edge=["b"])
    assert admitted(tmp_path / "empty") == ["pi"]


def test_devices_are_added_with_the_same_authority(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, devices=["a", "b"], fed=["fed.lan"], edge=["edge.lan"])
    before = files(keys)
    add_devices(keys, devices=["c"], days=7)
    add_devices(keys, devices=["d", "e"])
    assert admitted(keys) == ["a", "b", "c", "d", "e"]
    after = files(keys)
    assert {name for name in before if before[name] != after[name]} == {"ca/devices.txt"}
    authority = certificate(keys / "ca" / "ca.crt")
    for i, name in enumerate("abcde"):
        own = certificate(keys / "devices" / name / "tls.crt")
        own.verify_directly_issued_by(authority)
        assert own.subject.rfc4514_string() == f"CN=device-{i}"
        public = keys / "devices" / name / "node.pub"
        assert (keys / "fed" / "nodes" / f"device-{i}.pub").read_bytes() == public.read_bytes()
    test_only_the_owner_may_read(keys)


def test_an_index_is_not_given_twice_when_folders_have_gone_to_their_owners(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, devices=["a", "b"], fed=["fed.lan"], edge=["edge.lan"])
    for folder in ("devices", "fed", "edge"):
        (keys / folder).rename(tmp_path / folder)
    add_devices(keys, devices=["c"])
    assert certificate(keys / "devices" / "c" / "tls.crt").subject.rfc4514_string() == "CN=device-2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": []}, "1 to 10000 devices"),
        ({"devices": ["../a"]}, "letters, digits"),
        ({"devices": [".a"]}, "letters, digits"),
        ({"devices": ["a\n"]}, "letters, digits"),
        ({"devices": ["a", "b", "A"]}, "'A' twice"),
        ({"fed": ["10.0.0.1:9000"]}, "--fed must be a host name"),
        ({"edge": [""]}, "--edge must be a host name"),
        ({"edge": ["a..b"]}, "--edge must be a host name"),
        ({"edge": ["*.lan"]}, "--edge must be a host name"),
        ({"days": 0}, "1 to 3650 days"),
        ({"days": 3651}, "1 to 3650 days"),
    ],
)
def test_wrong_inputs_leave_nothing(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    given = {"devices": ["a"], "fed": ["f"], "edge": ["e"], "days": 9, **changes}
    with pytest.raises(InputError, match=re.escape(words)):
        make_keys(tmp_path / "keys", **given)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        if path.parent.name == "b":
            raise OSError(28, "No space left on device", str(path))
        path.write_bytes(content)

    monkeypatch.setattr(keys_module, "_write", full)
    with pytest.raises(StorageError, match="No space left"):
        make_keys(tmp_path / "keys", devices=["a", "b"], fed=["f"], edge=["e"])
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".keys.part").mkdir()
    with pytest.raises(InputError, match="another hasfl keys"):
        make_keys(tmp_path / "keys", devices=["a"], fed=["f"], edge=["e"])


def test_the_authority_must_be_whole(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    with pytest.raises(InputError, match=r"but has no ca/devices\.txt"):
        add_devices(keys, devices=["b"])
    make_keys(keys, devices=["a"], fed=["f"], edge=["e"])
    make_keys(tmp_path / "other", devices=["a"], fed=["f"], edge=["e"])
    (keys / "ca" / "ca.key").write_bytes((tmp_path / "other" / "ca" / "ca.key").read_bytes())
    with pytest.raises(InputError, match=r"must be the key of ca\.crt"):
        add_devices(keys, devices=["b"])
    (keys / "ca" / "ca.key").unlink()
    with pytest.raises(InputError, match=r"must hold ca\.crt and ca\.key"):
        add_devices(keys, devices=["b"])


# -- TLS with Python's own ssl, as Flower's HTTP has it ----------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair()
    with first, second:
        first.settimeout(10)
        second.settimeout(10)
        yield first, second


@pytest.mark.parametrize(
    ("party", "address", "accepted"),
    [("fed", "127.0.0.1", True), ("fed", "fed.lan", True), ("fed", "10.0.0.2", False),
     ("edge", "fed.lan", False), ("devices/pi", "fed.lan", False)],
)  # fmt: skip
def test_python_accepts_the_fed_server_alone_at_its_addresses(
    keys: Path, ends: tuple[socket.socket, socket.socket], party: str, address: str, accepted: bool
) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / party / "tls.crt", keys / party / "tls.key")
    client = ssl.create_default_context(cafile=keys / "edge" / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(_shake_hands, server, ends[0])
        if accepted:
            with client.wrap_socket(ends[1], server_hostname=address) as stream:
                assert stream.version() == "TLSv1.3"
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                client.wrap_socket(ends[1], server_hostname=address)
        other.result()


def _shake_hands(context: ssl.SSLContext, end: socket.socket) -> None:
    with suppress(OSError):  # the client's part of the test says why it failed
        context.wrap_socket(end, server_side=True).close()


# -- the command -----------------------------------------------------------------------------------------


def test_the_command(hasfl: Hasfl, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    done = hasfl("keys", keys, "--devices", 2, "--fed", "10.0.0.1,fed.lan", "--edge", "edge.lan")
    assert (done.code, done.err) == (0, "")
    assert [line.split("  ")[-1].strip() for line in done.out.splitlines()] == [
        "stays with you: its key admits devices",
        "to the fed server",
        "to the edge server",
        "to device 0",
        "to device 1",
    ]
    assert admitted(keys) == ["device-0", "device-1"]
    added = hasfl("keys", keys, "--add", "--names", "lab,roof")
    assert (added.code, added.out.splitlines()[1]) == (0, f"{keys / 'devices' / 'roof'}  to device 3")
    assert hasfl("keys", keys, "--add", "--devices", 1).code == 0
    assert admitted(keys) == ["device-0", "device-1", "lab", "roof", "device-4"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fed", "a", "--edge", "b"], "--devices must say how many"),
        (["--devices", 3, "--names", "a,b", "--fed", "a", "--edge", "b"], "each of the 3 devices, got 2"),
        (["--devices", 3, "--fed", "a"], "--fed and --edge must be the addresses"),
        (["--devices", 3, "--add"], "but has no ca/devices.txt"),
        (["--names", "a,", "--fed", "a", "--edge", "b"], "letters, digits"),
        (["--names", "", "--fed", "a", "--edge", "b"], "letters, digits"),
    ],
)
def test_wrong_uses_of_the_command(hasfl: Hasfl, tmp_path: Path, options: list[object], words: str) -> None:
    failed = hasfl("keys", tmp_path / "keys", *options)
    assert (failed.code, failed.out) == (2, "")
    assert words in failed.err
    assert failed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
