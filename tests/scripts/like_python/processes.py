"""Computes with processes that are forked and spawned, and terminates one."""
# $ python ./processes.py

import multiprocessing
import time


def square(number):
    return number * number


if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(5)), flush=True)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    print(child.exitcode)
