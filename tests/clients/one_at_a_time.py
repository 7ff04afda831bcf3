"""A backend that serves one request at a time, as one process of a pre-forking server does.

The paths /large and /chunked answer with as many bytes as the first argument says, a sequence of 8-byte decimal numbers; others with 4
bytes. Prints its port.
"""

import http.server
import sys

LARGE = int(sys.argv[1])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        # Without this field the server would wait for the next request of this connection before it serves another connection.
        self.send_header("connection", "close")
        if self.path == "/large":
            self.send_header("content-length", str(LARGE))
            self.end_headers()
            self.wfile.write(content())
        elif self.path == "/chunked":
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            data = content()
            for at in range(0, LARGE, 10_000):
                piece = data[at : at + 10_000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(b"fine")

    def log_message(self, *_):
        pass


def content():
    return b"".join(b"%07d " % number for number in range(LARGE // 8))


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
