"""Remote calls: a rank runs a function on another rank, and waits for the result.

    rank 1 (a client)                              rank 0 (the server)

    call(t, 0, "add", 2, 3)
        ["add", [2, 3]] ─────── request ─────────► functions["add"](2, 3)
        {"result": 5}   ◄─────── answer ──────────

A call is a request and an answer. The request has the name of a function (not its code) and the
arguments. The answer has the result. If the function fails, the answer has the error, and the
client raises it. Otherwise the client would wait for ever.

Messages carry arrays of bytes, so a request is first written as a text (JSON). The receiver must
know how many bytes will come. So the length is sent first, as a separate message.

On this page the server takes one request of each client in turn. So all clients wait for a client
that has not called yet. A client that makes no further calls sends None.

A call costs the latency of two messages, and the time to send the bytes there and back. (The
latency of a message is the time until its first byte arrives.) The server does the work of all its
clients. So if all ranks do the same at the same time, a collective such as the ring is faster.

Paper: Birrell & Nelson, "Implementing Remote Procedure Calls", 1984.
This page is the plain version. The real one, minidl/comm/rpc.py, adds: ranks that both serve and
call, requests in the order in which they arrive, several open calls, functions that make calls
themselves, arrays and any objects, and an error if a rank dies.
"""

import json

import numpy as np


def send(t, value, to):
    """Sends a value as JSON: first the number of bytes, then the bytes."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    t.send(np.array([len(data)]), to)
    t.send(data, to)


def receive(t, source):
    """Returns the value that rank `source` sends."""
    length = t.recv(np.empty(1, int), source)[0]
    data = t.recv(np.empty(length, np.uint8), source)
    return json.loads(data.tobytes())


def call(t, server, name, *arguments):
    """Returns the result of the server's function `name`. Raises RuntimeError if the function
    failed."""
    send(t, [name, arguments], server)
    answer = receive(t, server)
    if "error" in answer:
        raise RuntimeError(f"{name} on rank {server}: {answer['error']}")
    return answer["result"]


def stop(t, server):
    """Tells the server that this client makes no further calls."""
    send(t, None, server)


def serve(t, functions, clients):
    """Answers calls until every client has stopped. functions: {name: function}."""
    clients = list(clients)
    while clients:
        for client in list(clients):
            request = receive(t, client)
            if request is None:
                clients.remove(client)
                continue
            name, arguments = request
            try:
                answer = {"result": functions[name](*arguments)}
            except Exception as error:
                answer = {"error": repr(error)}
            send(t, answer, client)


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        if t.rank == 0:
            total = []

            def add(x):
                total.append(x)
                return sum(total)
            return serve(t, {"add": add}, clients=[1, 2])
        answers = [call(t, 0, "add", t.rank), call(t, 0, "add", 10 * t.rank)]
        try:
            call(t, 0, "subtract", 1)
        except RuntimeError as error:
            answers.append(str(error))
        stop(t, 0)
        return answers

    print(simulate(3, example))
