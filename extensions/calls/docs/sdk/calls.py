"""Run Python functions on the nodes, as with a ProcessPoolExecutor."""

from tidemill import Executor, progress


def area(radius: float) -> float:
    return 3.14159 * radius * radius


with Executor() as pool:
    print(list(pool.map(area, [1.0, 2.0, 3.0])))
    futures = [pool.submit(lambda k=k: k + 1) for k in range(100)]
    print(sum(future.result() for future in progress(futures)))
