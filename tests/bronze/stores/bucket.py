"""A local S3 server with a bucket for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

NAME = "captures"
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()  # until the one that asked for it ends
server.stop()
"""
_DENY = {"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*"}]}


@dataclass(frozen=True)
class Bucket:
    """A bucket on a local S3 server, and the environment variables to reach it."""

    endpoint: str
    client: Any

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "a-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def set_environment(self, patch: pytest.MonkeyPatch) -> None:
        """Have this process reach it, and nothing else."""
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in self.environment.items():
            patch.setenv(name, value)

    def put(self, key: str, data: bytes) -> str:
        """Put an object, or overwrite it; return its URI."""
        self.client.put_object(Bucket=NAME, Key=key, Body=data)
        return f"s3://{NAME}/{key}"

    def upload(self, key: str, path: Path) -> str:
        return self.put(key, path.read_bytes())

    def drop(self, key: str) -> None:
        self.client.delete_object(Bucket=NAME, Key=key)

    def deny(self, action: str, resource: str) -> None:
        """Refuse an action on a resource below the bucket's name."""
        (statement,) = _DENY["Statement"]
        refused = {**statement, "Action": action, "Resource": f"arn:aws:s3:::{NAME}{resource}"}
        self.client.put_bucket_policy(Bucket=NAME, Policy=json.dumps({**_DENY, "Statement": [refused]}))


@contextmanager
def serving() -> Iterator[Bucket]:
    """Serve an empty bucket on a free port of this machine, by a process of its own.

    In this process, it would wait for ever for a library that asks it and lets no other thread of Python run meanwhile.
    """
    command = [sys.executable, "-c", _SERVER]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdin is not None
    assert server.stdout is not None
    endpoint = server.stdout.readline().decode().strip()
    client = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id="a-key",
        aws_secret_access_key="a-secret",
    )
    client.create_bucket(Bucket=NAME)
    try:
        yield Bucket(endpoint, client)
    finally:
        server.stdin.close()
        server.wait()


@contextmanager
def serving_here() -> Iterator[Bucket]:
    """Serve an empty bucket that this process reaches by its environment."""
    with serving() as bucket, pytest.MonkeyPatch.context() as patch:
        bucket.set_environment(patch)
        yield bucket
