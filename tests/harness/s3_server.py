"""An S3 server on loopback that can fail requests and go away; moto's backend keeps the objects."""

import threading
import uuid

import boto3
from botocore.config import Config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_LONGEST_WAIT_S = 60.0

_INTERNAL_ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>"


class _Quiet(WSGIRequestHandler):
    def log(self, type, message, *args):  # noqa: A002
        pass


class S3Server:
    """
    Attributes:
        bucket: The bucket of the present test.
        fail_every: Each request whose number is divisible by this value fails; with 0, none fails.
        requests: The method and path of each request since `reset`, including failed requests.
        writes: While this event is cleared, PUT requests (of objects and parts) wait, at most 60 s.
    """

    def __init__(self):
        self._app = DomainDispatcherApplication(create_backend_app)
        self._count = 0
        self._port = 0
        self._lock = threading.Lock()
        self.fail_every = 0
        self.requests = []
        self.writes = threading.Event()
        self.start()
        self.reset()

    def reset(self):
        """Make a new, empty bucket, and end all faults."""
        self.fail_every = 0
        self.writes.set()
        self.bucket = f"bucket-{uuid.uuid4()}"
        self.client().create_bucket(Bucket=self.bucket)
        self.requests.clear()

    def start(self):
        """Listen on a free port; after `stop`, on the same port again."""
        self._server = make_server(
            "127.0.0.1", self._port, self._answer, threaded=True, request_handler=_Quiet
        )
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self):
        """Refuse connections; the objects are kept."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def environment(self):
        """The environment variables by which a client of another process finds this server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_CONFIG_FILE": "/dev/null",
        }

    def client(self):
        return boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
            config=Config(retries={"max_attempts": 0}),
        )

    def objects(self):
        """The keys of the bucket's first 1,000 objects."""
        answer = self.client().list_objects_v2(Bucket=self.bucket)
        return [found["Key"] for found in answer.get("Contents", ())]

    def unfinished(self):
        """The keys of the first 1,000 unfinished multipart uploads."""
        answer = self.client().list_multipart_uploads(Bucket=self.bucket)
        return [found["Key"] for found in answer.get("Uploads") or ()]

    def _answer(self, environ, start_response):
        with self._lock:
            self._count += 1
            fails = self.fail_every and self._count % self.fail_every == 0
            self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if environ["REQUEST_METHOD"] == "PUT":
            self.writes.wait(_LONGEST_WAIT_S)
        if fails:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [_INTERNAL_ERROR]
        return self._app(environ, start_response)
