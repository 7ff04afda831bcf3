<?php
final class Route
{
    public function __construct(private string $method, private string $path, public readonly string $page)
    {
    }

    public function fits(Request $request): bool
    {
        return $request->method === $this->method && $request->path === $this->path;
    }
}
