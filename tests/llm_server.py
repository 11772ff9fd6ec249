"""A server that speaks the OpenAI protocol on loopback, as a test scripts it: statuses, headers, pauses, blank lines, torn answers."""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(content, finish="stop"):
    """The body of an answer whose text is `content`."""
    message = {"role": "assistant", "content": content}
    return json.dumps({"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()


class Reply:
    """One answer: status, body, headers, and what happens on the way."""

    def __init__(self, body=b"", status=200, headers=None, blank_lines=0, pause=0.0, reset=False, cut=False, close=False):
        self.body, self.status, self.headers = body, status, {"Content-Type": "application/json"} | (headers or {})
        self.blank_lines, self.pause, self.reset, self.cut, self.close = blank_lines, pause, reset, cut, close


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append({"path": self.path, "headers": dict(self.headers), "body": body, "time": time.monotonic()})
        reply = server.script(body, len(server.requests))
        with contextlib.suppress(OSError):
            self.give(reply)

    def give(self, reply):
        if reply.reset:  # RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if reply.reset or reply.close:
            self.close_connection = True
            self.connection.close()
            return
        if reply.blank_lines or reply.cut:
            self.stream(reply)
            return
        time.sleep(reply.pause)
        self.send_response(reply.status)
        for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def stream(self, reply):
        self.send_response(reply.status)
        for name, value in {**reply.headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        for _ in range(reply.blank_lines):
            self.chunk(b"\n")
            time.sleep(reply.pause)
        self.chunk(reply.body[: len(reply.body) // 2] if reply.cut else reply.body)
        if reply.cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(script, certificate=None):
    """A server that answers with `script(body, number of the request)`; has `.url` and `.requests`; HTTPS with (key file, certificate file)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.script, server.requests, server.url = script, [], f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate[1], certificate[0])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
