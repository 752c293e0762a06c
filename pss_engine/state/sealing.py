"""Encryption at rest: the files of a state as one sealed file, AES-256-GCM, bound to the state's digest."""

from __future__ import annotations

import base64
import binascii
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from pss_engine.errors import BackendUnavailable, ConfigError, StateFormatError

SEALED_FILE = "state.sealed"
MAGIC = b"PSSAESG1"
KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16


class StateKey:
    """A key of 256 bits. It is never written anywhere, and no message shows it.

    A sealed file is ``MAGIC | nonce [12] | AES-256-GCM(length | names and sizes as JSON | the files' bytes) | tag``;
    the digest of the state is authenticated with it, so that a file under another name does not open.

    Raises:
        ConfigError: not 32 bytes.
        BackendUnavailable: the package ``cryptography`` is not installed.
    """

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise BackendUnavailable(
                "encrypted states need the package cryptography: pip install pss-engine[encryption]"
            ) from None
        if len(key) != KEY_BYTES:
            raise ConfigError(f"state key has {len(key)} bytes; {KEY_BYTES} are needed")
        self._cipher = AESGCM(key)

    @classmethod
    def load(cls, path: str | Path) -> StateKey:
        """From a file: 32 bytes as they are, or as text in hex or base64."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"state key {str(path)!r} cannot be read: {error.strerror}") from None
        return cls(data) if len(data) == KEY_BYTES else cls.parse(data.decode("ascii", "replace"), str(path))

    @classmethod
    def parse(cls, text: str, where: str = "state key") -> StateKey:
        """From text in hex or base64."""
        text = text.strip()
        try:
            return cls(bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error):
            raise ConfigError(f"{where}: neither {KEY_BYTES} bytes nor their hex or base64") from None

    def seal(self, files: Mapping[str, bytes], digest: str) -> bytes:
        """Files by name, as one."""
        head = json.dumps([[name, len(data)] for name, data in files.items()]).encode()
        nonce = os.urandom(NONCE_BYTES)
        content = struct.pack("<I", len(head)) + head + b"".join(files.values())
        return MAGIC + nonce + self._cipher.encrypt(nonce, content, digest.encode())

    def open(self, sealed: bytes, digest: str, where: str) -> dict[str, bytes]:
        """The files again; StateFormatError for another key, another digest or a changed byte."""
        from cryptography.exceptions import InvalidTag

        nonce, content = sealed[len(MAGIC) : len(MAGIC) + NONCE_BYTES], sealed[len(MAGIC) + NONCE_BYTES :]
        if not sealed.startswith(MAGIC) or len(content) < TAG_BYTES:
            raise StateFormatError(f"{where}: is no sealed state")
        try:
            plain = self._cipher.decrypt(nonce, content, digest.encode())
        except InvalidTag:
            raise WrongKey(f"{where}: does not open: sealed with another key, or changed") from None
        size = struct.unpack_from("<I", plain)[0]
        files, at = {}, 4 + size
        for name, length in json.loads(plain[4:at]):
            files[name], at = plain[at : at + length], at + length
        return files


class WrongKey(StateFormatError):
    """A sealed state that this key does not open; it is left where it is, since the key may be what is wrong."""
