"""What services and operating systems say to people: refusals that no repetition helps against.
Words as users report them; `infra.tpu.problems` and `infra.gcs.requests` tell them apart."""

import errno

from google.api_core import exceptions

CLOUD: tuple[Exception, ...] = (
    exceptions.ResourceExhausted("Quota limit 'TPUV5sLitepodPerProjectPerZone' has been exceeded"),
    exceptions.PermissionDenied("Permission 'tpu.queuedResources.create' denied on 'projects/P'"),
    exceptions.PermissionDenied("The caller does not have iam.serviceAccounts.actAs permission"),
    exceptions.PermissionDenied("The caller does not have permission"),
    exceptions.PermissionDenied("Cloud TPU API has not been used in project 1 before"),
    exceptions.FailedPrecondition("Billing is disabled for the project"),
    exceptions.NotFound("The project was not found"),
    exceptions.Unauthenticated("Request had invalid authentication credentials"),
    exceptions.InvalidArgument("The reservation does not exist"),
    exceptions.InvalidArgument("Cloud TPU got unknown runtime version"),
    exceptions.InvalidArgument("There is no such accelerator type"),
    exceptions.InvalidArgument("The subnetwork does not exist"),
    exceptions.InvalidArgument("The disk is attached already"),
    exceptions.NotFound("The location is unknown to us"),
    exceptions.InvalidArgument("Malformed"),
    exceptions.ResourceExhausted("Quota exceeded for requests per minute"),
    exceptions.AlreadyExists("There is a resource of another owner"),
    exceptions.DataLoss("Unrecoverable"),
)
"""Of Cloud TPU, to a request for a machine."""

BUCKET: tuple[Exception, ...] = (
    exceptions.Forbidden("me@x.y does not have storage.objects.create access to the object"),
    exceptions.Forbidden("me@x.y does not have storage.objects.get access to the object"),
    exceptions.Forbidden("Access denied"),
    exceptions.Forbidden("Request had insufficient authentication scopes"),
    exceptions.Forbidden("The billing account for the owning project is disabled"),
    exceptions.Forbidden("quota exceeded"),
    exceptions.Unauthorized("Invalid Credentials"),
    exceptions.BadRequest("Bucket is a requester pays bucket but no user project provided"),
    exceptions.BadRequest("User project specified in the request is invalid"),
    exceptions.BadRequest("Invalid argument"),
    exceptions.TooManyRequests("The object exceeded the rate limit"),
    exceptions.NotFound("The specified bucket does not exist"),
)
"""Of Cloud Storage, to any request."""

DIRECTORY = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)
"""Of the operating system, to whoever writes."""
