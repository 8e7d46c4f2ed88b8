"""What tests and demos need and no worker ever imports: brokers and providers to run against.

It refuses to import a test framework, so that users' tests can lean on it with any.
"""
