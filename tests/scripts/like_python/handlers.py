"""Handles signals in each way, and shows who has called the handlers."""
# $ python ./handlers.py

import asyncio
import os
import signal
import traceback


def interrupt():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        traceback.print_exc()


def handler(number, frame):
    print(number, frame.f_code.co_name, frame.f_back.f_code.co_name)
    raise KeyboardInterrupt("handled")


async def wait():
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
    await asyncio.sleep(600)


interrupt()
print(signal.getsignal(signal.SIGINT), signal.signal(signal.SIGINT, handler))
print(signal.getsignal(signal.SIGINT) is handler)
interrupt()
print(signal.signal(signal.SIGINT, signal.default_int_handler) is handler, signal.signal(signal.SIGUSR1, handler))
try:
    asyncio.run(wait())
except KeyboardInterrupt:
    print(signal.getsignal(signal.SIGINT), signal.signal(signal.SIGINT, signal.SIG_IGN))
interrupt()
