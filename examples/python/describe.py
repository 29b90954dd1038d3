"""The daemon's services and calls, as it tells them itself by reflection: `python describe.py`."""

from client import channel
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

database = ProtoReflectionDescriptorDatabase(channel)
pool = DescriptorPool(database)
for name in sorted(database.get_services()):
    if not name.startswith("sluice."):
        continue
    print(name)
    for call in pool.FindServiceByName(name).methods:
        stream = "stream " if call.server_streaming else ""
        print(f"  {call.name}({call.input_type.name}) returns ({stream}{call.output_type.name})")
