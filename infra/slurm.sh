#!/usr/bin/env bash
# One sweep on the nodes of one Slurm job:  sbatch infra/slurm.sh SPACE.yaml RUNS_FOLDER
# PYTHON is the one that has Sweeper, on all nodes; python3 if not set.
# RUNS_FOLDER is on a file system that all nodes share. Submitted again, it goes on where it was.
#SBATCH --job-name=sweeper
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@300
set -euo pipefail

space=${1:?"usage: sbatch slurm.sh SPACE.yaml RUNS_FOLDER"}
runs=${2:?"usage: sbatch slurm.sh SPACE.yaml RUNS_FOLDER"}
python=${PYTHON:-python3}
ray=$(dirname "$("$python" -c 'import sys; print(sys.executable)')")/ray

# A token of this job's own, readable by its owner only, on the file system that all nodes share.
umask 077
mkdir -p "$runs"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_TOKEN_PATH="$runs/.ray_token.$SLURM_JOB_ID"
"$python" -c 'import secrets; print(secrets.token_hex(32), end="")' > "$RAY_AUTH_TOKEN_PATH"

started=()
# shellcheck disable=SC2317  # called by the trap
finish() {
  trap - EXIT
  for pid in "${started[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait
  rm -f "$RAY_AUTH_TOKEN_PATH"
}
trap finish EXIT

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 10000))
# Two jobs may share a node; a short folder, since Ray puts socket paths of 107 bytes below it.
common=(--block --temp-dir="/tmp/sw$SLURM_JOB_ID")

srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
  "$ray" start --head --node-ip-address="$head" --port="$port" \
  --dashboard-host=127.0.0.1 "${common[@]}" &
started+=($!)
for node in "${nodes[@]:1}"; do
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" \
    "$ray" start --address="$head:$port" --block &
  started+=($!)
done

# The sweep takes the nodes that there are; most are there within a minute.
"$python" - "$head:$port" "${#nodes[@]}" << 'PYTHON'
import sys, time
import ray
address, wanted = sys.argv[1], int(sys.argv[2])
end = time.monotonic() + 180
while not ray.is_initialized():
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError):
        if time.monotonic() > end:
            raise
        time.sleep(1)
while sum(n["Alive"] for n in ray.nodes()) < wanted and time.monotonic() < end:
    time.sleep(1)
PYTHON

"$python" -m sweeper.search "$space" --runs "$runs" --address "$head:$port" &
driver=$!
# Five minutes before the time limit the running trials are stopped cleanly.
trap 'kill -TERM "$driver" 2> /dev/null || true' TERM
status=0
wait "$driver" || status=$?
# A signal ends the first wait, not the driver.
while kill -0 "$driver" 2> /dev/null; do wait "$driver" || status=$?; done
exit "$status"
