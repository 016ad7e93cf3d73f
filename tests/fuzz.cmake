# The fuzz targets, which lie with the tests of the folder whose parser they attack. In the fuzz
# preset they are libFuzzer programs; otherwise tests that replay the committed corpora.
slackline_fuzz(wire_header_fuzz
  SOURCES proto/wire_header_fuzz.cc
  LIBS slackline::proto
  CORPUS proto/corpus/wire_header_fuzz)
slackline_fuzz(control_frame_fuzz
  SOURCES transport/control_frame_fuzz.cc
  LIBS slackline::control
  CORPUS transport/corpus/control_frame_fuzz)
slackline_fuzz(rdma_hello_fuzz
  SOURCES transport/rdma_hello_fuzz.cc
  LIBS slackline::transport_rdma
  CORPUS transport/corpus/rdma_hello_fuzz)
slackline_fuzz(safetensors_fuzz
  SOURCES common/safetensors_fuzz.cc
  LIBS slackline::common
  CORPUS common/corpus/safetensors_fuzz)
slackline_fuzz(residual_codec_fuzz
  SOURCES common/codec/residual_codec_fuzz.cc
  LIBS slackline::common
  CORPUS common/corpus/residual_codec_fuzz)
slackline_fuzz(shm_peer_fuzz
  SOURCES transport/shm_peer_fuzz.cc
  LIBS slackline::transport_shm
  CORPUS transport/corpus/shm_peer_fuzz)
