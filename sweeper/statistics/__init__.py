"""From timings to numbers with intervals. Pure.

measurement   the request timings of one workload -> its measurement
windows       which tokens and which time count for a throughput
intervals     by resampling, the paired comparison, drift
trend         the node's own speed over a sweep, from the repeated baseline
"""
