"""The certificates of a private cluster on several hosts, made on the user's machine by an authority of the cluster.

The authority's key stays on this machine, in the file with its certificate, until the cluster is down: a host that is
added later gets a certificate of the same authority. This module takes as long to import as all others of a command.
"""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Collection
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tfcluster import settings
from tfcluster.core.forwarding import Certificate
from tfcluster.errors import ClusterError
from tfcluster.os.files import write_atomically
from tfcluster.paths import authority_path, make_private_folder


def issue_certificates(cluster: str, hosts: Collection[str]) -> dict[str, Certificate]:
    """Issue certificates for hosts by the cluster's authority, which is created if it is not there."""
    path = authority_path(cluster)
    try:
        try:
            authority = Authority.load(path)
        except (FileNotFoundError, ValueError):
            authority = Authority.create(cluster)
            make_private_folder(path.parent)
            authority.save(path)
    except OSError as error:
        raise ClusterError(
            f"{path}: cannot keep the authority for the hosts' certificates: {error.strerror}",
            hint="Set XDG_STATE_HOME to a folder that you can write to.",
        ) from error
    return {host: authority.issue(host) for host in hosts}


class Authority:
    """The authority of one cluster, which only its hosts accept."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, cluster: str) -> Authority:
        """Create the authority of a cluster."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tfcluster {cluster}"[:64])])
        builder = (
            _builder(2 * settings.CERTIFICATE_DAYS)
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(key, builder.sign(key, SHA256()))

    @classmethod
    def load(cls, path: Path) -> Authority:
        """Read what `save` has written.

        Raises:
            OSError: The file cannot be read, or another account may have written it.
            ValueError: The file is damaged.
        """
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:  # its certificates would let others connect
                raise OSError(errno.EPERM, "another account may have written this file", str(path))
            data = file.read()
        key = load_pem_private_key(data, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is of another kind")
        return cls(key, x509.load_pem_x509_certificate(data))

    def save(self, path: Path) -> None:
        """Write the authority with its private key to a file that only this user can read.

        Raises:
            OSError: The file cannot be written.
        """
        data = _pem_of(self._key) + self._certificate.public_bytes(Encoding.PEM)
        write_atomically(path, data, is_shared=True)

    @property
    def pem(self) -> str:
        """Return the authority's certificate."""
        return self._certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, host: str) -> Certificate:
        """Issue the certificate of a host, with a key of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(settings.CERTIFICATE_DAYS)
            .subject_name(x509.Name([]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        )
        certificate = builder.sign(self._key, SHA256())
        return Certificate(
            authority=self.pem,
            certificate=certificate.public_bytes(Encoding.PEM).decode(),
            key=_pem_of(key).decode(),
            until=certificate.not_valid_after_utc.timestamp(),
        )


def _builder(days: float) -> x509.CertificateBuilder:
    """Return the beginning of a certificate that is valid from now on, by clocks that are late too."""
    now = datetime.datetime.now(datetime.UTC)
    begin = now - datetime.timedelta(days=settings.CERTIFICATE_EARLY_DAYS)
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    return builder.not_valid_before(begin).not_valid_after(now + datetime.timedelta(days=days))


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
