"""A sweep: four trainings with different learning rates, all at the same time on one cluster.

python examples/tour/sweep.py
tfcluster runs -n 4
"""

import tfcluster

RATES = (0.001, 0.01, 0.1, 0.5)

cluster = tfcluster.connect()
runs = {rate: cluster.submit("linear", optimizer="sgd", steps=50, seed=4, lr=rate, name=f"lr-{rate}") for rate in RATES}
losses = {}
for rate, run in runs.items():
    *_, result = cluster.attach(run)  # the last event is the result
    losses[rate] = result["result"]["loss"]
    print(f"learning rate {rate}: loss {losses[rate]:.4f} ({run})")
print("the best learning rate is", min(losses, key=lambda rate: losses[rate]))
