// Loads a shard's chunks from a checkpoint, whatever number of shards wrote it.
#pragma once

#include <string>

#include "common/status.h"
#include "proto/control.pb.h"
#include "server/shard.h"

namespace slackline::server {

// Restores every chunk that `map` gives to `shard_index`. The shard has installed the map and no
// worker pushes yet. All files that are needed are checked whole before a chunk changes.
// InvalidArgument: a checkpoint of another model or optimizer (names the difference); DataLoss:
// damaged (names the file, and the chunk where one can be named).
Status RestoreShard(const std::string& directory, const control::ShardMap& map,
                    ShardIndex shard_index, Shard* shard);

}  // namespace slackline::server
