# Tests of the engine on SimGrid, where that is built.
if(NOT TARGET shoal_simgrid)
  return()
endif()

shoal_add_test(schedule simulate_scale SOURCES simulate_scale_test.cc LIBRARIES shoal_simgrid)

shoal_add_cli_test(simulate_platform "on 512 nodes x 8 ranks of p4d.*ring +[0-9.]+ .*one node for all" simulate --platform p4d --nodes 512
                   --size 1MiB --algorithm ring)
shoal_add_cli_test(simulate_table " 2 +8 [|].* 16 +64 [|].*fastest.*crossover: direct overtakes hierarchical.ring. between 2 and 16"
                   simulate --platform p4d --nodes 2,16 -L 4 --size 1MiB)
shoal_add_cli_error_test(platform "unknown platform 'p9'; known: g4dn.12xlarge g4dn.metal p3dn" simulate --platform p9 --nodes 2)
shoal_add_cli_error_test(platform_file "open the platform no.json: No such file" simulate --platform no.json --nodes 2)
shoal_add_cli_error_test(nodes "nodes '8..2' are not like 512, 2,8,64 or 2..4096" simulate --platform p4d --nodes 8..2)
shoal_add_cli_error_test(nodes_many "nodes '4097' are not like" simulate --platform p4d --nodes 4097)
shoal_add_cli_error_test(nodes_none "give --nodes, or --table" simulate --platform p4d)
shoal_add_cli_error_test(nodes_shape "a platform has equal nodes" simulate --platform p4d --nodes 2 --shape 2x2)
shoal_add_cli_error_test(ranks_per_node "4096 nodes of 17 ranks: not between 1 and 65536" simulate --platform p4d --nodes 4096
                         --ranks-per-node 17)
shoal_add_cli_error_test(nodes_alone "--nodes needs a --platform" simulate --nodes 2)
shoal_add_cli_error_test(platform_rate "of nic_gbit_s is not more than 0" simulate --platform p4d --nodes 2 --network-gbit-s 0)
shoal_add_cli_error_test(platform_size "tasks on nodes that differ are too many" simulate --platform p4d --nodes 4096 --algorithm tree)
shoal_add_cli_test(simulate_full_name "on 2 nodes x 8 ranks of p4de.24xlarge.*8 x A100 80GB .NVLink, 300 GB/s each way.*NCCL +26214.4 .*published"
                   simulate --platform p4de.24xlarge --nodes 2 --size 1GiB --algorithm "hierarchical(direct)")
shoal_add_cli_test(explain_platform "p5.48xlarge: 8 x H100.*between nodes +75.00 us.*-> hierarchical.*on SimGrid.*full at 401.3 GB/s" explain
                   all_reduce 64MiB --platform p5.48xlarge --nodes 16)
shoal_add_cli_error_test(explain_platform "unknown platform 'p9'" explain all_reduce 4 --platform p9)
shoal_add_cli_error_test(explain_shape "leave out --shape" explain all_reduce 4 --platform p5 --shape 2x2)
shoal_add_cli_error_test(explain_nodes "need a --platform" explain all_reduce 4 --nodes 2)
shoal_add_python_test(schedule published SCRIPT published_test.py NEEDS shoal_cli)
