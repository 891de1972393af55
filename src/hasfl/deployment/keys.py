"""Keys and certificates of a deployment, in one folder for each party.

    DIR/ca/              the authority: ca.crt; ca.key, which can admit devices and must stay with its maker;
                         devices.txt, the names of all devices by index
    DIR/fed/             the fed server; nodes/ in it has the public node keys of all other parties
    DIR/edge/            the edge server
    DIR/devices/NAME/    one device

The folder of a party goes to its owner and to nobody else. Each party's folder has ca.crt, the party's
certificate tls.crt and its private key tls.key. Devices and the edge server also have the pair of keys by
which Flower recognises a node (node.key, node.pub). The common names of the certificates are fed, edge, and
device-0, device-1, … by index in the fleet.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hasfl.deployment.channels import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    EDGE_NAME,
    FED_NAME,
    KEY_FILE,
    device_name,
    host_name,
)
from hasfl.errors import InputError, StorageError
from hasfl.paths import is_there

AUTHORITY_KEY_FILE = "ca.key"
NODE_KEY_FILE = "node.key"  # private key in OpenSSH format, as flower-supernode reads it
NODE_PUBLIC_FILE = "node.pub"  # public key in OpenSSH format, as `flwr supernode register` reads it
AUTHORITY_FOLDER = "ca"
DEVICES_FOLDER = "devices"
NODES_FOLDER = "nodes"  # folder of the fed server with a file NAME.pub for each node's common name
DEVICES_FILE = "devices.txt"  # device names, one per line, in the order of the fleet

# The numbers below were chosen by hand.
AUTHORITY_DAYS = 7300  # days for which the authority's certificate is valid
MOST_DAYS = 3650  # longest validity of a party's certificate
MOST_DEVICES = 10_000
CLOCK_ERROR = timedelta(days=1)  # certificates are valid this much earlier, for devices whose clocks are late
TLS_CURVE = ec.SECP256R1()  # NIST P-256
NODE_CURVE = ec.SECP384R1()  # NIST P-384, as Flower's documentation has it
LOCAL = ("localhost", "127.0.0.1")  # addresses of Flower's own processes on the fed server's machine
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")


@dataclass(frozen=True, slots=True)
class _Authority:
    """The authority of a deployment, which signs all certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_keys(
    folder: Path, *, devices: Sequence[str], fed: Sequence[str], edge: Sequence[str], days: int = 365
) -> None:
    """Make an authority, and the key folders of both servers and of the devices with these names.

    `fed` and `edge` are the servers' addresses: host names or IP addresses, without ports. The folder must be
    empty or missing. After an error, no file is left.
    """
    _check_names(devices)
    addresses = {
        FED_NAME: _alternative_names(FED_NAME, (*fed, *LOCAL)),
        EDGE_NAME: _alternative_names(EDGE_NAME, edge),
    }
    if is_there(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder} must be empty or not there, so that no key is overwritten: give another folder, or "
            "admit more devices with --add"
        )
    _check_days(days)
    authority = _new_authority()
    with _in_one_step(folder.parent / f".{folder.name}.part") as new:
        _write_folder(
            new / AUTHORITY_FOLDER,
            {
                AUTHORITY_FILE: authority.certificate.public_bytes(Encoding.PEM),
                AUTHORITY_KEY_FILE: _private(authority.key),
                DEVICES_FILE: _lines(devices),
            },
        )
        public = {
            EDGE_NAME: _write_party(
                new / EDGE_NAME, EDGE_NAME, authority, days, addresses[EDGE_NAME], node=True
            )
        }
        _write_folder(new / DEVICES_FOLDER, {})
        public |= _write_devices(new / DEVICES_FOLDER, devices, authority, days, first=0)
        _write_party(new / FED_NAME, FED_NAME, authority, days, addresses[FED_NAME], node=False)
        _write_folder(new / FED_NAME / NODES_FOLDER, {f"{name}.pub": key for name, key in public.items()})
        new.replace(folder)


def add_devices(folder: Path, *, devices: Sequence[str], days: int = 365) -> None:
    """Make the key folders of more devices with the same authority; indices follow those of earlier devices.

    The public node keys of the new devices are added to the fed server's folder, if that folder exists.
    """
    earlier = admitted(folder)
    _check_names([*earlier, *devices])
    authority = _read_authority(folder / AUTHORITY_FOLDER)
    _check_days(days, authority.certificate)
    with _in_one_step(folder / f".{DEVICES_FOLDER}.part") as new:
        public = _write_devices(new, devices, authority, days, first=len(earlier))
        _write(new / DEVICES_FILE, _lines([*earlier, *devices]))
        # Before the folders of the devices, so that no index is given twice.
        (new / DEVICES_FILE).replace(folder / AUTHORITY_FOLDER / DEVICES_FILE)
        (folder / DEVICES_FOLDER).mkdir(mode=0o700, exist_ok=True)
        for name in devices:
            (new / name).replace(folder / DEVICES_FOLDER / name)
        nodes = folder / FED_NAME / NODES_FOLDER
        for name, key in public.items() if nodes.is_dir() else ():
            _write(nodes / f"{name}.pub", key)


def admitted(folder: Path) -> list[str]:
    """The names of all devices that have keys in this folder, in the order of the fleet."""
    try:
        return (folder / AUTHORITY_FOLDER / DEVICES_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise InputError(
            f"{folder} must have been made by hasfl keys, but has no {AUTHORITY_FOLDER}/{DEVICES_FILE}: give "
            "the folder that has the authority's key"
        ) from None


def certificate_name(keys: Path) -> str:
    """The common name in the certificate of a party's key folder."""
    try:
        certificate = x509.load_pem_x509_certificate((keys / CERTIFICATE_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{keys} must hold {CERTIFICATE_FILE}, made by hasfl keys ({error})") from None
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _write_devices(
    folder: Path, names: Sequence[str], authority: _Authority, days: int, *, first: int
) -> dict[str, bytes]:
    """Write a key folder for each device; return the public node keys by common name."""
    return {
        device_name(index): _write_party(folder / name, device_name(index), authority, days, None, node=True)
        for index, name in enumerate(names, first)
    }


def _write_party(
    folder: Path,
    name: str,
    authority: _Authority,
    days: int,
    addresses: x509.SubjectAlternativeName | None,
    *,
    node: bool,
) -> bytes:
    """Write the key folder of a party; return its public node key. Only servers have addresses."""
    key, node_key = ec.generate_private_key(TLS_CURVE), ec.generate_private_key(NODE_CURVE)
    certificate = _certificate(name, key.public_key(), authority, days, addresses)
    public = node_key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    files = {
        AUTHORITY_FILE: authority.certificate.public_bytes(Encoding.PEM),
        CERTIFICATE_FILE: certificate.public_bytes(Encoding.PEM),
        KEY_FILE: _private(key),
    }
    if node:
        files[NODE_KEY_FILE] = node_key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        files[NODE_PUBLIC_FILE] = public
    _write_folder(folder, files)
    return public


def _new_authority() -> _Authority:
    key = ec.generate_private_key(TLS_CURVE)
    builder = _builder("hasfl deployment", key.public_key(), key.public_key(), AUTHORITY_DAYS)
    builder = builder.issuer_name(_name("hasfl deployment"))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _Authority(builder.sign(key, hashes.SHA256()), key)


def _read_authority(folder: Path) -> _Authority:
    try:
        certificate = x509.load_pem_x509_certificate((folder / AUTHORITY_FILE).read_bytes())
        key = load_pem_private_key((folder / AUTHORITY_KEY_FILE).read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} must hold {AUTHORITY_FILE} and {AUTHORITY_KEY_FILE} ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InputError(f"{folder / AUTHORITY_KEY_FILE} must be the key of {AUTHORITY_FILE}: restore it")
    return _Authority(certificate, key)


def _certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    authority: _Authority,
    days: int,
    addresses: x509.SubjectAlternativeName | None,
) -> x509.Certificate:
    """Make the certificate of a party; only a certificate with addresses is valid for a TLS server."""
    builder = _builder(name, key, authority.key.public_key(), days)
    builder = builder.issuer_name(authority.certificate.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if addresses is not None:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(addresses, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    name: str, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=_name(name), public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - CLOCK_ERROR).not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(role: str, addresses: Sequence[str]) -> x509.SubjectAlternativeName:
    """The host names in a server's certificate: its role's for our streams, its addresses for Flower."""
    names: list[x509.GeneralName] = [x509.DNSName(host_name(role))]
    for address in dict.fromkeys(addresses):
        try:
            names.append(x509.IPAddress(ip_address(address)))
        except ValueError:
            if not HOST_NAME.fullmatch(address):
                raise InputError(
                    f"--{role} must be a host name or an IP address, without a port, got {address!r}"
                ) from None
            names.append(x509.DNSName(address))
    return x509.SubjectAlternativeName(names)


def _check_names(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= MOST_DEVICES:
        raise InputError(f"a deployment must have 1 to {MOST_DEVICES} devices, got {len(names)}")
    for name in names:
        if not DEVICE_NAME.fullmatch(name):
            raise InputError(
                f"the name of a device must have 1 to 64 letters, digits, dots, hyphens or underscores, and "
                f"begin with a letter or digit, got {name!r}"
            )
    seen = {name.casefold() for name in names}  # some file systems treat A and a as equal
    if len(seen) < len(names):
        twice = next(name for i, name in enumerate(names) if name.casefold() in map(str.casefold, names[:i]))
        raise InputError(f"devices must have different names, got {twice!r} twice: give another name")


def _check_days(days: int, authority: x509.Certificate | None = None) -> None:
    if not 1 <= days <= MOST_DAYS:
        raise InputError(f"certificates must be valid for 1 to {MOST_DAYS} days, got {days}")
    if authority and datetime.now(UTC) + timedelta(days=days) > authority.not_valid_after_utc:
        end = authority.not_valid_after_utc.date()
        raise InputError(
            f"certificates may be valid until {end}, when that of the authority ends: give fewer days"
        )


@contextmanager
def _in_one_step(temporary: Path) -> Iterator[Path]:
    """A temporary folder, whose content is moved to its place when complete; always removed at the end."""
    try:
        temporary.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise InputError(
            f"{temporary} is there: another hasfl keys is writing, or was killed; then remove that folder"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot write {temporary}: {error.strerror}; give another folder") from None
    try:
        yield temporary
    except OSError as error:
        raise StorageError(f"cannot write {error.filename}: {error.strerror}; nothing was kept") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        _write(folder / name, content)


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _lines(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()
