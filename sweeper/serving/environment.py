"""The environment of a server, built from nothing.

What a shell or Ray happens to set must not change a measurement, and two trials must differ only
in what the search varied.
"""

from collections.abc import Mapping
from pathlib import Path

#: What a server needs of the machine's own environment; a name that ends with _ is a prefix.
INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "PYTHONPATH", "CONDA_PREFIX"),
    *("HF_", "XDG_", "SSL_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    # Facts of the node's network, and what its owner has switched off in its fabric: a server
    # that used NVLink multicast there could take GPUs out of service. A setting may still win.
    *("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME"),
    *("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST"),
)

#: Variable -> folder below the cache folder, where compilers keep what they built. The
#: frameworks' own documentation names the variables; FlashInfer appends .cache/flashinfer.
CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "CUDA_CACHE_PATH": "cuda",
}


def child_environment(
    machine: Mapping[str, str],
    *,
    engine: Mapping[str, str],
    gpu_ids: tuple[int, ...],
    cpus: int,
    cache_dir: Path | None = None,
) -> dict[str, str]:
    """Return the whole environment that a server is started with.

    The later wins: what the machine needs, then our own, then the engine's with the setting's,
    then the devices, which nothing may change. Without GPUs CUDA_VISIBLE_DEVICES is set and
    empty: left out, it would show all GPUs of the node.

    Args:
        machine: The owner's own environment.
        engine: What `Engine.environment` returned.
        gpu_ids: The server's GPUs, as numbered by NVML (which is the order of the PCI bus).
        cpus: Cores that the server may use; its ranks share them evenly, where OpenMP's
            default would give all of them to each.
        cache_dir: One folder for compiled kernels across all trials.
    """
    chosen = {name: value for name, value in machine.items() if _is_inherited(name)}
    if cache_dir is not None:
        chosen |= {name: str(cache_dir / below) for name, below in CACHES.items()}
    chosen["OMP_NUM_THREADS"] = str(max(1, cpus // max(1, len(gpu_ids))))
    chosen["PYTHONUNBUFFERED"] = "1"  # the log is read while it grows
    chosen |= engine
    chosen["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    chosen["CUDA_VISIBLE_DEVICES"] = ",".join(str(number) for number in gpu_ids)
    return chosen


def _is_inherited(name: str) -> bool:
    return any(name == one or (one.endswith("_") and name.startswith(one)) for one in INHERITED)
