"""What NCCL and RCCL really said: lines of one process each, from public logs, whose addresses stand beside them.

Hosts and processes are those of the logs; what says nothing of the network is left out.
"""

PERLMUTTER_WITH_PLUGIN = """\
nid001049:658566:658566 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to hsn
nid001049:658566:658566 [0] NCCL INFO Bootstrap : Using hsn0:10.250.0.161<0>
nid001049:658566:658566 [0] NCCL INFO NCCL version 2.23.4+cuda12.4
nid001049:658566:658680 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.
nid001049:658566:658680 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v6)
nid001049:658566:658680 [0] NCCL INFO NET/OFI Using aws-ofi-nccl 1.6.0
nid001049:658566:658680 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 8 nics)
nid001049:658566:658680 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so.
nid001049:658566:658680 [0] NCCL INFO Using network AWS Libfabric
nid001049:658566:658680 [0] NCCL INFO NET/AWS Libfabric : GPU Direct RDMA Enabled for HCA 0 'cxi0'
nid001049:658566:658701 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
nid001049:658566:658701 [0] NCCL INFO Channel 00/0 : 6[2] -> 0[0] [receive] via NET/AWS Libfabric/7/GDRDMA
nid001049:658566:658701 [0] NCCL INFO Channel 02/0 : 0[0] -> 5[1] [send] via NET/AWS Libfabric/7/GDRDMA
"""
"""Rank 0 of github.com/NERSC/nccl-ofi-plugin, logs-regression/slurm-test-2.23-918503.out, at commit 9f59235."""

PERLMUTTER_THROUGH_THE_HOST = """\
nid001052:1765951:1766046 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 8 nics)
nid001052:1765951:1766046 [0] NCCL INFO Using network AWS Libfabric
nid001052:1765951:1766063 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 3000 / HCA 3 (distance 7 > 6)
nid001052:1765951:1766063 [0] NCCL INFO Channel 01/0 : 2[2] -> 4[0] [receive] via NET/AWS Libfabric/3
nid001052:1765951:1766063 [0] NCCL INFO Channel 03/0 : 4[0] -> 1[1] [send] via NET/AWS Libfabric/1
"""
"""Rank 4 of the same job."""

PERLMUTTER_WITHOUT_PLUGIN = """\
nid200272:569912:569956 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to hsn
nid200272:569912:569956 [0] NCCL INFO Bootstrap: Using hsn0:10.249.41.224<0>
nid200272:569912:569956 [0] NCCL INFO NCCL version 2.25.1+cuda12.8
nid200272:569912:569962 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
nid200272:569912:569962 [0] NCCL INFO NET/IB : No device found.
nid200272:569912:569962 [0] NCCL INFO NET/IB : Using [RO]; OOB hsn0:10.249.41.224<0>
"""
"""github.com/nv-legate/cupynumeric/issues/1159, as far as it is quoted: no network is named yet."""

NCCL_2_28_WITHOUT_PLUGIN = """\
localhost:1026041:1026116 [0] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so
localhost:1026041:1026116 [0] NCCL INFO Bootstrap: Using enp129s0f0:10.2.134.184<0>
localhost:1026041:1026116 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
localhost:1026041:1026117 [1] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
localhost:1026041:1026117 [1] NCCL INFO NET/IB : No device found.
localhost:1026041:1026117 [1] NCCL INFO NET/IB : Using [RO]; OOB enp129s0f0:10.2.134.184<0>
localhost:1026041:1026117 [1] NCCL INFO Failed to initialize NET plugin IB
localhost:1026041:1026117 [1] NCCL INFO NET/Socket : Using [0]enp129s0f0:10.2.134.184<0>
localhost:1026041:1026117 [1] NCCL INFO Initialized NET plugin Socket
localhost:1026041:1026117 [1] NCCL INFO Assigned NET plugin Socket to comm
localhost:1026041:1026117 [1] NCCL INFO Using network Socket
"""
"""github.com/nv-legate/cupynumeric/issues/1253."""

ALPS_PLUGIN_NOT_FOUND = """\
nid006365:180142:180163 [0] NCCL INFO NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal network plugin.
nid006365:180142:180163 [0] net.cc:626 NCCL WARN Error: network AWS Libfabric not found.
"""
"""CSCS documentation, NCCL, known issues: github.com/eth-cscs/cscs-docs, docs/software/communication/nccl.md."""

ALPS_WITH_PLUGIN = "nid006352:34610:34631 [0] NCCL INFO Using network AWS Libfabric\n"
"""The same page."""

EFA = """\
algo-1:462:462 [0] NCCL INFO Bootstrap : Using eth0:10.200.5.135<0>
algo-1:462:462 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v4 symbol.
algo-1:462:462 [0] NCCL INFO NET/OFI Using aws-ofi-nccl 1.3.0aws
algo-1:462:462 [0] NCCL INFO NET/OFI Forcing AWS OFI ndev 2
algo-1:462:462 [0] NCCL INFO NET/OFI Selected Provider is efa
algo-1:462:462 [0] NCCL INFO Using network AWS Libfabric
NCCL version 2.10.3+cuda11.3
"""
"""github.com/aws/aws-ofi-nccl/issues/161."""

ROCE = """\
node2:14159:14159 [0] NCCL INFO Bootstrap : Using enp24s0np0:10.10.10.1<0>
node2:14159:14159 [0] NCCL INFO NET/Plugin : No plugin found, using internal implementation
NCCL version 2.18.5+cuda12.0
node2:14159:14168 [0] NCCL INFO NCCL_IB_HCA set to mlx5_4
node2:14159:14168 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB enp24s0np0:10.10.10.1<0>
node2:14159:14168 [0] NCCL INFO Using network IB
"""
"""github.com/NVIDIA/nccl/issues/1052."""

TWO_INTERFACES = """\
user:852750:852802 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
user:852750:852802 [0] NCCL INFO NET/Socket : Using [0]ibs85f0:192.168.1.14<0> [1]ib0:192.168.1.15<0>
user:852750:852802 [0] NCCL INFO Using network Socket
"""
"""github.com/NVIDIA/nccl-tests/issues/188."""

OLD_NCCL = """\
ds-ml-01-0:17754:17754 [0] NCCL INFO Bootstrap : Using [0]lo:127.0.0.1<0>
ds-ml-01-0:17754:17754 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so).
ds-ml-01-0:17754:17754 [0] NCCL INFO NET/IB : No device found.
ds-ml-01-0:17754:17754 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
NCCL version 2.4.8+cuda10.1
"""
"""github.com/NVIDIA/nccl/issues/352: before "Using network" was printed."""

RCCL = """\
z292:58192:58192 [0] NCCL INFO Bootstrap : Using eno2np1:192.168.2.194<0>
z292:58192:58192 [0] NCCL INFO NET/Plugin: No plugin found (librccl-net.so)
z292:58192:58192 [0] NCCL INFO NET/Plugin: Using internal network plugin.
RCCL version : 2.21.5-HEAD:9a0e6a1
HIP version  : 6.3.42134-a9a80e791
z292:58192:58200 [2] NCCL INFO Failed to open libibverbs.so[.1]
z292:58192:58200 [2] NCCL INFO NET/Socket : Using [0]eno2np1:192.168.2.194<0>
z292:58192:58200 [2] NCCL INFO Using non-device net plugin version 0
z292:58192:58200 [2] NCCL INFO Using network Socket
"""
"""github.com/ROCm/rccl-tests/issues/163."""

RCCL_ON_SLINGSHOT_CHANNELS = """\
g1064:11144:11196 [1] NCCL INFO Channel 02/0 : 1[c6000] -> 4[c1000] [send] via NET/Socket/1 comm 0x9e4d8d0 nRanks 08
g1064:11145:11195 [2] NCCL INFO Channel 01/0 : 2[c9000] -> 0[c1000] via P2P/IPC comm 0x10a5a9f0 nRanks 08
"""
"""github.com/ROCm/rccl/issues/1026: nodes of four MI250X, as Frontier's are, without the plugin."""
