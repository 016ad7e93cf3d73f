// The manifest's JSON form. Internal to checkpoint/.
#pragma once

#include <string>
#include <string_view>

#include "server/checkpoint/manifest.h"

namespace slackline::server {

std::string ManifestToJson(const Manifest& manifest);
// `path` is for messages. The result has passed CheckManifest.
Result<Manifest> ManifestFromJson(std::string_view json, const std::string& path);
// Consistency of the parts: chunks tile the flat space that the tensors span, segments tile their
// chunks, files have plain names and are all there.
Status CheckManifest(const Manifest& manifest, const std::string& path);

}  // namespace slackline::server
