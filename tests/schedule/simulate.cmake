# Tests of the engine on SimGrid, where that is built.
if(NOT TARGET shoal_simgrid)
  return()
endif()

shoal_add_test(schedule simulate_scale SOURCES simulate_scale_test.cc LIBRARIES shoal_simgrid)

shoal_add_cli_test(simulate_platform "512 nodes x 8 ranks .*p4d.*ring +[0-9.]+ +[0-9.]+ +[0-9.]+ +one " simulate --platform p4d --nodes 512
                   --size 1MiB --algorithm ring)
shoal_add_cli_test(simulate_table " 2 +8 [|].* 16 +64 [|].*fastest.*direct [^\n]*hierarchical.ring. [^\n]*2 [a-z]+ 16"
                   simulate --platform p4d --nodes 2,16 -L 4 --size 1MiB)
shoal_add_cli_error_test(platform "'p9'.* g4dn.12xlarge g4dn.metal p3dn" simulate --platform p9 --nodes 2)
shoal_add_cli_error_test(platform_file "no.json: No such file" simulate --platform no.json --nodes 2)
shoal_add_cli_error_test(nodes "'8..2'.* 512.* 2,8,64 .*2..4096" simulate --platform p4d --nodes 8..2)
shoal_add_cli_error_test(nodes_many "'4097'.* 4096" simulate --platform p4d --nodes 4097)
shoal_add_cli_error_test(nodes_none "--nodes.* --table" simulate --platform p4d)
shoal_add_cli_error_test(nodes_shape "--nodes.* --ranks-per-node.* --shape" simulate --platform p4d --nodes 2 --shape 2x2)
shoal_add_cli_error_test(ranks_per_node "4096 nodes.* 17 ranks[^0-9]* 1 [^0-9]*65536" simulate --platform p4d --nodes 4096
                         --ranks-per-node 17)
shoal_add_cli_error_test(nodes_alone "--nodes .*--platform" simulate --nodes 2)
shoal_add_cli_error_test(platform_rate "nic_gbit_s [^0-9]*0" simulate --platform p4d --nodes 2 --network-gbit-s 0)
shoal_add_cli_error_test(platform_size "[0-9]+ tasks" simulate --platform p4d --nodes 4096 --algorithm tree)
shoal_add_cli_test(simulate_full_name "2 nodes x 8 ranks .*p4de.24xlarge.*8 x A100 80GB .NVLink, 300 GB/s.*NCCL +26214.4 .*published"
                   simulate --platform p4de.24xlarge --nodes 2 --size 1GiB --algorithm "hierarchical(direct)")
shoal_add_cli_test(explain_platform "p5.48xlarge: 8 x H100.*nodes +75.00 us.*-> hierarchical.*SimGrid.* 401.3 GB/s" explain
                   all_reduce 64MiB --platform p5.48xlarge --nodes 16)
shoal_add_cli_error_test(explain_platform "'p9'.* p3dn" explain all_reduce 4 --platform p9)
shoal_add_cli_error_test(explain_shape "platform.* --shape" explain all_reduce 4 --platform p5 --shape 2x2)
shoal_add_cli_error_test(explain_nodes "--nodes .*--platform" explain all_reduce 4 --nodes 2)
shoal_add_python_test(schedule published SCRIPT published_test.py LONG SOME NEEDS shoal_cli)
