"""Servers on 127.0.0.1 that take notices: HTTP and HTTPS, and mail."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import socketserver
import ssl
import threading
import time
from contextlib import contextmanager
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(folder, host="127.0.0.1"):
    """Write a self-signed certificate with its key for a host; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "of a test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    file = folder / f"{host}.pem"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + pem)
    return file


def tls_context(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


class HttpServer(ThreadingHTTPServer):
    """Keeps the JSON of each request in ``bodies``, its headers in ``headers``, its path in ``paths``.

    ``status`` is what it answers with, ``answer`` takes the place of it.
    """

    daemon_threads = True

    def __init__(self, port=0, certificate=None):
        super().__init__(("127.0.0.1", port), _Handler)
        self.bodies, self.headers, self.paths = [], [], []
        self.status, self.answer = 202, None
        if certificate is not None:
            self.socket = tls_context(certificate).wrap_socket(self.socket, server_side=True)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """Say nothing: clients that refuse a certificate close the connection."""


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        self.server.headers.append(dict(self.headers))
        self.server.paths.append(self.path)
        if self.server.answer is not None:
            self.server.answer(self)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.server.paths.append(f"GET {self.path}")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def redirect_to(place):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", place)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def drip(handler):
    """Send a byte of the answer every 50 ms, for a minute."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(1200):
        time.sleep(0.05)
        handler.wfile.write(b".")


@contextmanager
def serve(server):
    """Serve until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class MailServer(socketserver.ThreadingTCPServer):
    """Takes mail by SMTP after STARTTLS. ``mails``, ``recipients`` and ``logins`` are what it got."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self, certificate=None, *, tls_from_the_start=False):
        super().__init__(("127.0.0.1", 0), _MailHandler)
        self.certificate, self.tls_from_the_start = certificate, tls_from_the_start
        self.mails, self.recipients, self.logins, self.answers = [], [], [], {}
        self.port = self.server_address[1]

    def handle_error(self, request, client_address):
        """Say nothing: clients that refuse a certificate close the connection."""


class _MailHandler(socketserver.StreamRequestHandler):
    def handle(self):
        is_secure = self.server.tls_from_the_start
        if is_secure:
            self._encrypt()
        self._say("220 test")
        while line := self.rfile.readline().decode().strip():
            verb = line.split()[0].upper()
            if verb in self.server.answers:
                self._say(self.server.answers[verb])
            elif verb == "EHLO":
                offers = ["AUTH PLAIN"] if is_secure or self.server.certificate is None else ["STARTTLS"]
                self._say("\r\n".join(["250-test", *(f"250-{each}" for each in offers), "250 8BITMIME"]))
            elif verb == "STARTTLS":
                self._say("220 go")
                self._encrypt()
                is_secure = True
            elif verb == "AUTH":
                self.server.logins.append(line)
                self._say("235 yes")
            elif verb == "DATA":
                self._say("354 go")
                data = b""
                while not data.endswith(b"\r\n.\r\n"):
                    data += self.rfile.readline()
                self.server.mails.append(message_from_bytes(data[:-3], policy=policy.default))
                self._say("250 taken")
            else:
                if verb == "RCPT":
                    self.server.recipients.append(line.partition(":")[2])
                self._say("221 bye" if verb == "QUIT" else "250 yes")

    def _encrypt(self):
        self.connection = tls_context(self.server.certificate).wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)

    def _say(self, text):
        self.wfile.write(f"{text}\r\n".encode())
